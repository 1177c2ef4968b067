"""A published archive, recognised by its size and checksum."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from sonde.errors import SondeError


@dataclass(frozen=True, kw_only=True)
class Archive:
    """Where a data set's own site keeps it, and what arrives when nothing goes wrong."""

    name: str
    url: str
    size: int  # bytes
    md5: str


def check_size(path: Path, archive: Archive) -> None:
    """Refuse a file that cannot be the archive, without reading it."""
    size = path.stat().st_size
    if size != archive.size:
        raise SondeError(
            f"{path} has {size:,} bytes, the published archive {archive.size:,}: remove it and fetch it again"
        )


def verify(path: Path, archive: Archive) -> None:
    """Refuse a file whose content is not the archive's."""
    check_size(path, archive)
    found = md5(path)
    if found != archive.md5:
        raise SondeError(
            f"{path} has the checksum {found}, the published archive {archive.md5}: remove it and fetch it again"
        )


def md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
