"""Files of a store: where they are, how they are read and written, their checksums, and how large they may be.

A file is written aside and then renamed into place; a full disk or a locked folder becomes one clear error.  In an
object store a put does all of that: the object appears whole or not at all.

A store may be sent by somebody else.  Inside it nothing is written or removed through a symbolic link, and only
regular files are read, up to a limit.  The store's own folder may be a link: the user names it.

A file may unpack to a multiple of its own size, plus a fixed amount, and no more: rows of runs hardly repeat, so a few
bytes that unpack to gigabytes were made to do harm.  Sizes come from headers, before anything is decoded.

JSON that carries its own checksum ends with it:

{
 …,
 "sha256": "…"      of every byte before this line
}
"""

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from sonde.core.atomic import remove_stale, set_aside, sync_folder
from sonde.core.errors import SondeError
from sonde.store.remote import Remote, connect


class Place(Protocol):
    """What a path of this machine and an object's URL have in common, under pathlib's names."""

    @property
    def name(self) -> str:
        """The last part."""

    @property
    def parent(self) -> Self:
        """Without the last part."""

    def __truediv__(self, key: str, /) -> Self: ...
    def exists(self) -> bool:
        """Whether something is there."""

    def read_bytes(self) -> bytes:
        """The whole content."""

    def iterdir(self) -> Iterator[Self]:
        """What lies directly below."""

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file or object."""


def absolute(at: Place) -> str:
    """The absolute path or the URL, for another process or machine."""
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

    return connect(named)


# ── read and write ───────────────────────────────────────────────────────────────────────────────────
_P = TypeVar("_P", bound=Place)

_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_BYTES_AT_A_TIME = 1 << 24  # bytes

_MARK = ".store"  # an object that shows a prefix to be in use


@contextlib.contextmanager
def clear_errors(path: Place) -> Iterator[None]:
    """Turn what the operating system says into what the user can do."""
    try:
        yield
    except OSError as error:
        raise SondeError(explain_os_error(error, path)) from error


def explain_os_error(error: OSError, path: Place) -> str:
    """What happened to the path, and what helps."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"no space left while writing {path}: free some, then give the same command to resume"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"cannot write {path}: permission denied; choose another folder or change its permissions"
        case errno.EFBIG:
            limit = "raise the limit (`ulimit -f unlimited`), then give the same command to resume"
            return f"{path} would be larger than a file may be here: {limit}"
        case errno.ENAMETOOLONG:
            return f"a name in {_short(path)} is longer than this file system allows (255 bytes): choose a shorter one"
        case errno.ENOENT:
            if path.parent.exists():
                return f"cannot write {path}: {path.parent} takes no new files; choose another folder"
            return f"{path.parent} is gone: it was removed while the command ran; run the command again"
        case errno.ENOTDIR | errno.EEXIST:
            return f"{path} is in the way or lies below a file: name a folder"
        case _:
            return f"{path}: {error.strerror or error}"


def _short(path: Place) -> str:
    text = str(path)
    return text if len(text) <= 80 else f"{text[:40]}…{text[-40:]}"


def make_folder(path: _P) -> _P:
    """The folder, created if need be; a file of that name is an error.

    An object store has no folders: a mark shows at once that the bucket is there and may be written to.
    """
    if isinstance(path, Remote):
        (path / _MARK).put(b"")
        return path
    assert isinstance(path, Path)
    with clear_errors(path):
        if path.exists() and not path.is_dir():
            raise SondeError(f"{path} is a file: name a folder")
        if not path.exists():
            path.mkdir(parents=True, exist_ok=True)
            sync_folder(path.parent)
    return path


def prepare_output_file(path: Path, option: str, example: str) -> Path:
    """Prepare a file to be written: refuse a folder, make the parent, remove what a killed process left there."""
    if path.is_dir():
        raise SondeError(f"{path} is a folder: name a file, for example {option} {path / example}")
    remove_stale(make_folder(path.parent))
    return path


def refuse_link(path: Place) -> None:
    """Nothing inside a store is written or removed through a symbolic link: it may lead anywhere."""
    if isinstance(path, Path) and path.is_symlink():
        raise SondeError(
            f"{path} is a symbolic link: Sonde writes and removes nothing through one; put a folder in its place"
        )


def make_inner_folder(path: _P) -> _P:
    """A folder that Sonde keeps inside a store, created if need be."""
    refuse_link(path)
    return make_folder(path)


def read(path: Place, most: int | None = None, *, follow: bool = True) -> bytes:
    """The content of a regular file of at most `most` bytes; `follow=False` refuses a symbolic link."""
    if not isinstance(path, Path):
        return _no_more(path.read_bytes(), most, path)
    if not follow:
        refuse_link(path)
    file = os.open(path, _READ if follow else _READ | getattr(os, "O_NOFOLLOW", 0))
    try:
        known = os.fstat(file)
        if not stat.S_ISREG(known.st_mode):
            raise SondeError(f"{path} is no regular file: move it away")
        if most is not None and known.st_size > most:
            raise SondeError(f"{path} has {known.st_size:,} bytes, and may have {most:,}: move it away")
        content = os.read(file, known.st_size + 1)
        while len(content) != known.st_size and (more := os.read(file, _BYTES_AT_A_TIME)):  # it grows, or is very large
            content = _no_more(content + more, most, path)
        return content
    finally:
        os.close(file)


def opened(path: Path) -> io.BufferedReader:
    """A regular file, for reading: a device or a pipe would never end."""
    file = open(os.open(path, _READ), "rb")  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise SondeError(f"{path} is no regular file: move it away")
    return file


def _no_more(content: bytes, most: int | None, path: Place) -> bytes:
    if most is not None and len(content) > most:
        raise SondeError(f"{path} has more than the {most:,} bytes that it may have: move it away")
    return content


def write(path: Place, content: bytes) -> None:
    """Write the whole content or nothing: a reader sees the old file until the new one is complete on disk."""
    if isinstance(path, Remote):
        path.put(content)
        return
    assert isinstance(path, Path)
    with clear_errors(path), set_aside(path) as (aside,):
        aside.write_bytes(content)


def write_folder(path: Place, contents: dict[str, bytes]) -> None:
    """Write a new folder that appears with all its files; in an object store, with the last of them."""
    if isinstance(path, Remote):
        for name, content in contents.items():
            (path / name).put(content)
        return
    assert isinstance(path, Path)
    with clear_errors(path), set_aside(path) as (aside,):
        aside.mkdir()
        for name, content in contents.items():
            (aside / name).write_bytes(content)


# ── seals ────────────────────────────────────────────────────────────────────────────────────────────
_SEAL = b',\n "sha256": "'
_END = b'"\n}\n'


def seal(tree: Mapping[str, Any]) -> bytes:
    """The tree as JSON that ends with the checksum of everything before it."""
    body = json.dumps(tree, indent=1, ensure_ascii=False)[: -len("\n}")].encode()
    return body + _SEAL + hashlib.sha256(body).hexdigest().encode() + _END


def is_sealed(content: bytes) -> bool:
    """Whether the content ends with its own checksum."""
    body, mark, rest = content.rpartition(_SEAL)
    return bool(mark) and rest == hashlib.sha256(body).hexdigest().encode() + _END


# ── how large they may be ────────────────────────────────────────────────────────────────────────────
ROWS_OF_RUN = 12_000_000  # of a run: 1.1 GB in memory
UNPACKED_BYTES = 1_000_000_000  # bytes of a file of rows once it is unpacked
JSON_BYTES = 16_000_000  # bytes of a description, a manifest, facts
MOST_LAYERS = 100_000  # layers

_FREE_ROWS, _ROWS_A_BYTE = 500_000, 1  # of a file
_FREE_BYTES, _BYTES_A_BYTE = 64_000_000, 100
_FREE_ROWS_OF_STORE = 4_000_000  # of all files that are read together: 360 MB in memory


def refuse_rows(rows: int, packed: int, what: object, fix: str) -> None:
    """Raise where a file has more rows than a run may have, or than its bytes explain."""
    if rows > ROWS_OF_RUN:
        raise SondeError(
            f"{what} has more rows than the {ROWS_OF_RUN:,} that a run may have: measure less often, with "
            "--set probes.schedule=log_spaced or --set log=epoch"
        )
    if rows > _FREE_ROWS + _ROWS_A_BYTE * packed:
        raise SondeError(f"{what} has {rows:,} rows in {packed:,} bytes, which no run of Sonde's has: {fix}")


def refuse_unpacked(unpacked: int, packed: int, what: object, fix: str) -> None:
    """Raise where a file unpacks to more than memory holds, or than its bytes explain."""
    if unpacked > min(UNPACKED_BYTES, _FREE_BYTES + _BYTES_A_BYTE * packed):
        raise SondeError(f"{what} unpacks to {unpacked / 1e9:.2g} GB, which no run of Sonde's has: {fix}")


class Allowance:
    """Bounds the rows of all files that are read together, by their bytes on disk."""

    def __init__(self, packed: int) -> None:
        self.left = _FREE_ROWS_OF_STORE + _ROWS_A_BYTE * packed

    def take(self, rows: int, what: object) -> None:
        """Count the rows of one file, or raise where the store has more than its bytes explain."""
        self.left -= rows
        if self.left < 0:
            raise SondeError(
                f"{what}: the store has more rows than its bytes explain, which no store of Sonde's has: "
                "move the runs that you do not know out of it"
            )
