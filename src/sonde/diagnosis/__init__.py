"""What is wrong with a training run, where, since when, and what mends it; silence where nothing is."""
