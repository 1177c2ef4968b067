"""Measure any PyTorch model: watch its training loop, check it before training, run experiments on copies of it."""

import math
import sys
import warnings


class WatchWarning(UserWarning):
    """Something that a watch could not do.  Training is not affected."""


def warn(text: str) -> None:
    """Warn once, without ever raising in the training loop: where warnings are errors, print to stderr."""
    try:
        warnings.warn(text, WatchWarning, stacklevel=2)
    except WatchWarning:
        print(f"sonde: {text}", file=sys.stderr)


def finite_or_none(value: float) -> float | None:
    """The value as JSON, which has no infinity, can hold it."""
    return value if math.isfinite(value) else None
