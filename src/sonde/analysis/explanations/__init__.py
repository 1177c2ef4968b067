"""What every name that a user meets means: the one source for `sonde explain`, findings, pages and tooltips."""
