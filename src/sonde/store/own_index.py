"""Which indexes this user wrote: they were checked when they were written, and need not be checked at every reading.

An index carries a code that only who has the key can make.  The key is a file of 32 random bytes in the user's cache.
An index from somebody else, or of another machine, is checked line by line.
"""

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from functools import cache
from pathlib import Path

import platformdirs

LENGTH = 32


def code_of(content: bytes) -> str:
    """What stands in an index of this user's; empty where no key can be kept."""
    key = _key(_path())
    return "" if key is None else hmac.new(key, content, hashlib.sha256).hexdigest()


def is_own(content: bytes, code: str) -> bool:
    """Whether this user wrote it."""
    return code != "" and hmac.compare_digest(code.encode(), code_of(content).encode())


def _path() -> Path:
    return Path(platformdirs.user_cache_dir("sonde", appauthor=False)) / "index.key"


@cache
def _key(path: Path) -> bytes | None:
    """Read, or made by whoever comes first."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(file, secrets.token_bytes(LENGTH))
            os.close(file)
        key = path.read_bytes()
        return key if len(key) == LENGTH else None
    return None
