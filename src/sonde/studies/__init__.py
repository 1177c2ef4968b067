"""Studies, chosen by name in `STUDIES`: which runs answer a question, and what they show.

A study is a question, a function (scale, seeds) → configurations, and a function from the stored runs to findings.
`quick` takes minutes on a laptop without a download, `full` is the scale of the papers.  `--set` changes the
configurations and `--only` filters them; several values for a key make groups, which are never averaged together and
have findings and figures of their own.

The runs of a study are found in a store by computing its configurations again and comparing whole digests, so that a
run with another configuration cannot slip into a figure.  Runs of plugin rules that differ in the rule alone are added
as lines of their own.  A study may train further runs in addition to its own, for findings and figures that ask for
them.

A finding is a sentence computed from rows, with the numbers in it and the runs and seeds behind them.
"""

from sonde.studies.audit import AUDIT_STUDY, CIFAR10_STUDY, SNAPSHOTS_STUDY
from sonde.studies.controls import CONTROL_STUDIES
from sonde.studies.residual import RESIDUAL_STUDY
from sonde.studies.rules import RULES_STUDY
from sonde.studies.study import Study, StudyFinding

STUDIES: dict[str, Study] = {
    "residual": RESIDUAL_STUDY,
    "snapshots": SNAPSHOTS_STUDY,
    "audit": AUDIT_STUDY,
    "cifar10": CIFAR10_STUDY,
    "rules": RULES_STUDY,
    "credit_at": CONTROL_STUDIES["credit_at"],
    "random_targets": CONTROL_STUDIES["random_targets"],
    "penalty": CONTROL_STUDIES["penalty"],
    "trained_blocks": CONTROL_STUDIES["trained_blocks"],
    "depth": CONTROL_STUDIES["depth"],
    "deep": CONTROL_STUDIES["deep"],
    "linear_quadratic": CONTROL_STUDIES["linear_quadratic"],
}

__all__ = ["STUDIES", "Study", "StudyFinding"]
