"""Files of a store: where they are, how they are read and written, their checksums, and how large they may be.

A file is written under a temporary name, synced and then renamed, so that a file under its own name is always
complete; a full disk or a locked folder becomes one clear error.  In an object store a put does all of that: the object
appears whole or not at all.  The user's cache folder is written in the same way.  It keeps what takes long to compute:
pictures, counts of operations.

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

import errno
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import shutil
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import platformdirs

import sonde
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


# ── written aside, then renamed ────────────────────────────────────────────────────────────────────
ASIDE = ".aside-"  # the prefix of every temporary name


@contextmanager
def set_aside(*targets: Path, locked: bool = False) -> Iterator[list[Path]]:
    """Yield a temporary path for each target; rename all of them at the end, or remove them after an exception.

        with set_aside(folder / "rows.parquet") as (path,):
            path.write_bytes(content)

    Targets are files or folders.  With `locked` the caller is the only writer: temporary files of a killed process
    are removed first, and an existing folder is replaced.  Otherwise several processes may write at
    once: of files the last one stays, of folders the first one.
    """
    mark = "" if locked else aside_mark()
    aside = {target.with_name(f"{ASIDE}{mark}{target.name}"): target for target in targets}
    if locked:
        _remove(*aside)
    try:
        yield list(aside)
        for path in aside:
            _sync(path)
        for path, target in aside.items():
            if locked and target.is_dir() and not target.is_symlink():
                _remove(target)
            path.replace(target)
        for folder in {target.parent for target in targets}:
            sync_folder(folder)
    finally:
        _remove(*aside)


def aside_mark() -> str:
    """The part of a temporary name after `ASIDE`: machine, process and a unique number, for `remove_stale`."""
    return f"{_writer(os.getpid())}{uuid.uuid4().hex[:8]}-"


def remove_stale(folder: Path) -> None:
    """Remove the temporary files in a folder whose process, on this machine, is dead."""
    try:
        found = [path for path in folder.iterdir() if path.name.startswith(ASIDE)]
    except OSError:
        return
    for path in found:
        writer = re.match(r"[0-9a-f]{6}-(\d{1,9})-", path.name.removeprefix(ASIDE))
        if writer and writer[0] == _writer(int(writer[1])) and not is_alive(int(writer[1])):
            _remove(path)


def _writer(process: int) -> str:
    """Machine and process, as in a temporary name."""
    return f"{hashlib.sha256(platform.node().encode()).hexdigest()[:6]}-{process}-"


def is_alive(process: int) -> bool:
    """Whether the process runs on this machine; True where the system has no safe way to ask."""
    if os.name == "posix":
        try:
            os.kill(process, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except OSError:  # it belongs to another user
            return True
    return True


def _remove(*paths: Path) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):  # an exception that explains it is on its way already
                path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Flush a file, or a folder with its content, to the disk, so that it survives a power failure."""
    if path.is_dir():
        for inner in path.iterdir():
            _sync(inner)
        sync_folder(path)
    else:
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, where the system can: a renamed file keeps its new name."""
    if os.name == "posix":
        with suppress(OSError):  # some file systems refuse it
            number = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)


# ── read and write ───────────────────────────────────────────────────────────────────────────────────
_P = TypeVar("_P", bound=Place)

_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_BYTES_AT_A_TIME = 1 << 24  # bytes

_MARK = ".store"  # an object that shows a prefix to be in use


@contextmanager
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


# ── a cache on disk ─────────────────────────────────────────────────────────────────────────────────
# The key of a file holds a digest of everything the content is computed from, the source code of this package included.
# So content found in the cache is what would be computed now.  The folder may be deleted at any time.
_MOST = 400
"""Files of each kind.  The least recently used are deleted first."""


def cache_key(*parts: str, libraries: tuple[str, ...]) -> str:
    """A key from these parts, the source code of Sonde and the versions of the libraries that compute the content."""
    versions = map(importlib.metadata.version, libraries)
    return hashlib.sha256("\n".join((_code_digest(), *versions, *parts)).encode()).hexdigest()


@cache
def _code_digest() -> str:
    """A digest of every module of Sonde, because any may affect the content."""
    package = Path(sonde.__file__).parent
    hashed = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        hashed.update(f"{path.relative_to(package).as_posix()} {path.stat().st_size}\n".encode())
        hashed.update(path.read_bytes())
    return hashed.hexdigest()


def user_cache(name: str = "") -> Path:
    """A file or folder in the user's cache folder; without a name, that folder."""
    return Path(platformdirs.user_cache_dir("sonde", appauthor=False)) / name


def read_cached(kind: str, key: str) -> bytes | None:
    """The content with this key; None if there is none, or if its file is damaged."""
    path = user_cache(kind) / key
    try:
        checksum, _, content = path.read_bytes().partition(b"\n")
        os.utime(path)
    except OSError:
        return None
    return content if checksum == _checksum(key, content) else None


def write_cached(kind: str, key: str, content: bytes) -> None:
    """Write content and delete the oldest; nothing happens if the folder cannot be written."""
    folder = user_cache(kind)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        remove_stale(folder)
        with set_aside(folder / key) as (aside,):
            aside.write_bytes(_checksum(key, content) + b"\n" + content)
        oldest_last = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in oldest_last[_MOST:]:
            path.unlink()


def _checksum(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + content).hexdigest().encode()
