"""What is wrong with a training run, where, since when, and what to try; silence where nothing is."""
