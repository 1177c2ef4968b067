"""Training: one run from its configuration to its rows, resumable at every epoch."""
