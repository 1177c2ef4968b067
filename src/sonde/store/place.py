"""Where runs or data sets lie: a folder, or a prefix of an object store that is named by a URL."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, Self

from sonde.core.errors import SondeError


class Place(Protocol):
    """What a path of this machine and an object's URL have in common, under pathlib's names."""

    @property
    def name(self) -> str: ...
    @property
    def parent(self) -> Self: ...
    @property
    def suffix(self) -> str: ...
    def __truediv__(self, key: str, /) -> Self: ...
    def exists(self) -> bool: ...
    def read_bytes(self) -> bytes: ...
    def iterdir(self) -> Iterator[Self]: ...
    def unlink(self, missing_ok: bool = False) -> None: ...


def absolute(at: Place) -> str:
    """Its name for another process or machine."""
    return str(at.absolute()) if isinstance(at, Path) else str(at)


def place(named: str | Place) -> Place:
    """`runs` is a folder, `s3://bucket/prefix` a prefix of an object store."""
    text = str(named)
    protocol, url, rest = text.partition("://")
    if re.match(r"[a-z][a-z0-9+]+:/(?!/)", text):
        raise SondeError(f"{text}: a URL is written {text.split(':')[0]}://…, with two slashes, as text")
    if not isinstance(named, str):
        return named
    if not url:
        return Path(named)
    if protocol == "file":
        return Path(rest)

    from sonde.store.remote import connect

    return connect(named)
