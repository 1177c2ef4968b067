"""Measure any PyTorch model: watch its training loop, check it before training, run experiments on copies of it."""

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
