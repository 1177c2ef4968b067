"""The run store: one folder per run, written so that a reader never sees half a state."""
