"""What a watch has to say: one warning, which never becomes an exception in somebody's training."""

import sys
import warnings


class WatchWarning(UserWarning):
    """Something that a watch could not do; training is not touched by it."""


def warn(text: str) -> None:
    try:
        warnings.warn(text, WatchWarning, stacklevel=2)
    except WatchWarning:  # warnings are errors here
        print(f"sonde: {text}", file=sys.stderr)
