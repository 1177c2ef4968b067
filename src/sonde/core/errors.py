"""Errors that a user can act on: one line that says what is wrong and how to fix it."""

import difflib
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from typing import TypeVar

_T = TypeVar("_T")

_UNPRINTABLE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # a terminal's control sequences
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # and direction marks
)


def printable(text: str) -> str:
    """Remove control sequences, which a terminal executes instead of showing."""
    return _UNPRINTABLE.sub("", text)


def unicode(text: str) -> str:
    """Escape the bytes of a path that are no UTF-8, so that the text can be written to a file."""
    return text.encode(errors="backslashreplace").decode()


_BREAKS = re.compile("[\n\x85\u2028\u2029]")


def one_line(text: str) -> str:
    """Escape line breaks, so that a name from a file cannot begin a new line."""
    return _BREAKS.sub(lambda found: ascii(found[0])[1:-1], text)


def print_notice(text: str) -> None:
    """Print a line about the command to standard error; a terminal gets it wrapped between words."""
    said = f"sonde: {one_line(text)}"
    if sys.stderr.isatty():
        said = textwrap.fill(said, shutil.get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)
    print(said, file=sys.stderr, flush=True)


_told: set[str] = set()


def tell(text: str) -> None:
    """Print a notice once in a process."""
    if text not in _told:
        _told.add(text)
        print_notice(text)


class SondeError(Exception):
    """An error in the input, the files or the environment.  Its message is one line and says how to fix it."""

    def __str__(self) -> str:
        return one_line(super().__str__())


def nearest(name: str, known: Iterable[str], listed_by: str | None = None) -> str:
    """The end of a message about an unknown name: similar names, and the command that lists all names.

    Without similar names and without such a command, all known names.
    """
    names = sorted(known)
    same = [known for known in names if known.casefold() == name.casefold()]
    begun = [known for known in names if len(name) > 3 and known.casefold().startswith(name.casefold())][:3]
    ends = [known for known in names if known.rpartition(".")[2] == name]  # L for model.L
    close = same or ends or begun or difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hints = [f"did you mean {' or '.join(repr(near) for near in close)}?"] if close else []
    if listed_by is not None:
        hints.append(f"`{listed_by}` lists all names")
    return " ".join(hints) or f"there are: {', '.join(names)}"


def pick(table: Mapping[str, _T], name: str, kind: str) -> _T:
    """Look a name up in a table; raise a `SondeError` with similar names where it is unknown."""
    if name in table:
        return table[name]
    raise SondeError(f"unknown {kind} {name!r}: {nearest(name, table)}")


def installation(extra: str) -> str:
    """The commands that install an optional dependency, for a message."""
    return f"pip install 'sonde[{extra}]', in a checkout pip install -e '.[{extra}]'"
