"""A network from outside the package: a function that returns an ordinary module."""

from torch import nn


def funnel(shape, outputs, width=16, dropout=0.1):
    """Two hidden layers with dropout."""
    inputs = 1
    for side in shape:
        inputs *= side
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(inputs, width)),
        nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout)),
        nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout)),
        nn.Linear(width, outputs),
    )
