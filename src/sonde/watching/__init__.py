"""Watch any PyTorch model in any training loop: what reaches each module, and what comes back."""
