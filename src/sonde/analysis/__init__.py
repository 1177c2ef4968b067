"""What stored runs show: readings, comparisons, the audit, diagnoses, recovery, recomputation.

- Readings look up one metric of many runs, or all metrics of one.  Evidence is what figures and findings see: tidy rows
  and one line per run.
- Compare: runs that differ in one factor, paired by seed, with intervals.
- Audit: four questions for each recipe and rule.  D1, does the scale of the states hold?  D2, does the training
  precision resolve the gradient?  D3, is the credit above its null?  D4, do the blocks help?  A question answers with
  a value, fired or clear, or the reason why it is undefined; the verdict is a sentence computed from the answers.
  docs/calibration.md says how often each fires on healthy runs.
- Diagnose: pure functions from what a run shows (rows, facts of the first step, results of experiments, the audit) to a
  finding or None.  A table orders them, and says which cause explains which symptom.
- Recovery: the share of backprop's margin over frozen blocks that each rule recovers.
- Explanations: what every name means, for `sonde explain`, findings and pages.
- Recompute: every metric by its plain definition, one sample at a time in float64, from the tensors that a run stored.
  It shares no code with the probes; tests compare the two on every network.  This part needs torch, the rest does not.

A threshold stands once, next to its question; texts take the number from there.
"""
