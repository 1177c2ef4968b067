"""What a reader has to be told beside the numbers, once in a process."""

import sys

from sonde.core.errors import one_line

_told: set[str] = set()


def tell(text: str) -> None:
    """A line on the standard error, unless it was there before."""
    if text not in _told:
        _told.add(text)
        print(f"sonde: {one_line(text)}", file=sys.stderr)
