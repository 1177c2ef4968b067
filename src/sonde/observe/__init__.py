"""Look at any PyTorch model: watch its training loop, check it before training, test copies of it."""
