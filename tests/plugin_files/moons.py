"""A task from outside the package: a function that returns arrays."""

import numpy as np


def moons(seed, samples=120, noise=0.1):
    """Two half circles, one class each."""
    rng = np.random.default_rng(seed)
    label = rng.integers(2, size=samples)
    angle = rng.uniform(0, np.pi, samples) + np.pi * label
    x = np.stack([np.cos(angle) + label, np.sin(angle) + label / 2], 1)
    return (x + noise * rng.normal(size=x.shape)).astype(np.float32), label
