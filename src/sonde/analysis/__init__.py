"""What stored runs say: readings, comparisons, the audit, diagnoses, recovery, recomputation."""
