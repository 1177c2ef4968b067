"""Errors a person can act on: one line that says what is wrong and how to mend it."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


_UNPRINTABLE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # a terminal's control sequences
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # and what turns a line round
)


def printable(text: str) -> str:
    """The text without anything that a terminal would obey instead of showing it."""
    return _UNPRINTABLE.sub("", text)


def unicode(text: str) -> str:
    """The text; bytes of a path that are no UTF-8 are spelled out, so that it can be written to a file."""
    return text.encode(errors="backslashreplace").decode()


_BREAKS = re.compile("[\n\x85\u2028\u2029]")


def one_line(text: str) -> str:
    """The text with its line breaks written out, so that a name from a file makes no line of its own."""
    return _BREAKS.sub(lambda found: ascii(found[0])[1:-1], text)


class SondeError(Exception):
    """A mistake in the input, the files or the surroundings; its message is one line and states the fix."""

    def __str__(self) -> str:
        return one_line(super().__str__())


def nearest(name: str, known: Iterable[str], listed_by: str | None = None) -> str:
    """Ending for a message about an unknown name: the nearest names; what lists all of them, or all of them if none is
    near.
    """
    names = sorted(known)
    same = [known for known in names if known.casefold() == name.casefold()]
    close = same or difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    said = [f"did you mean {' or '.join(repr(near) for near in close)}?"] if close else []
    if listed_by is not None:
        said.append(f"`{listed_by}` lists all names")
    return " ".join(said) or f"there are: {', '.join(names)}"


def pick(table: Mapping[str, T], name: str, kind: str) -> T:
    """The entry of a table of choices, or an error that lists the names there are."""
    if name in table:
        return table[name]
    raise SondeError(f"unknown {kind} {name!r}: {nearest(name, table)}")


def installation(extra: str) -> str:
    """How to get the packages of an optional feature."""
    return f"pip install 'sonde[{extra}]', in a checkout pip install -e '.[{extra}]'"
