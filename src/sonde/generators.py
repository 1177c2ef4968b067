"""Named random generators: every draw of a run comes from one of these, derived from its seed."""

import hashlib

import torch


def generator(seed: int, name: str) -> torch.Generator:
    """An independent stream for each (seed, name): adding one never shifts another."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
