"""A cache on disk for what takes long to compute and follows from its key: pictures, counts of operations.

The key holds a digest of everything the content is computed from, the source code of this package included.  So
content found in the cache is what would be computed now.  The folder may be deleted at any time.
"""

import hashlib
import importlib.metadata
import os
from contextlib import suppress
from functools import cache
from pathlib import Path

import platformdirs

import sonde
from sonde.core.atomic import remove_stale, set_aside

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
