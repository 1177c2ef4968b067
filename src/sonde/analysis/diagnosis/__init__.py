"""Diagnoses of a training run: what is wrong, where, since when, and what to try."""
