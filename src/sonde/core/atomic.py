"""Atomic files: write under a temporary name, sync, then rename.  A file under its own name is always complete.

The user's cache folder is written in this way.  It keeps what takes long to compute: pictures, counts of operations.
"""

import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import platformdirs

import sonde

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
