"""Write aside, then rename into place; a full disk or a locked folder becomes one clear error.

In an object store a put is all of that: the object appears whole or not at all.
"""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from sonde.atomic import set_aside, sync_folder
from sonde.errors import SondeError
from sonde.store.place import Place
from sonde.store.remote import Remote

P = TypeVar("P", bound=Place)

MARK = ".store"  # an object that shows a prefix to be in use


@contextlib.contextmanager
def clear_errors(path: Place) -> Iterator[None]:
    """Turn what the operating system says into what the user can do."""
    try:
        yield
    except OSError as error:
        raise SondeError(explain(error, path)) from error


def explain(error: OSError, path: Place) -> str:
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
            return f"{path.parent} is gone: somebody removed it; give the same command again to begin anew"
        case errno.ENOTDIR | errno.EEXIST:
            return f"{path} is in the way or lies below a file: name a folder"
        case _:
            return f"{path}: {error.strerror or error}"


def _short(path: Place) -> str:
    text = str(path)
    return text if len(text) <= 80 else f"{text[:40]}…{text[-40:]}"


def make_folder(path: P) -> P:
    """The folder, created if need be; a file of that name is an error.

    An object store has no folders: a mark shows at once that the bucket is there and may be written to.
    """
    if isinstance(path, Remote):
        (path / MARK).put(b"")
        return path
    assert isinstance(path, Path)
    with clear_errors(path):
        if path.exists() and not path.is_dir():
            raise SondeError(f"{path} is a file: name a folder")
        if not path.exists():
            path.mkdir(parents=True, exist_ok=True)
            sync_folder(path.parent)
    return path


def write(path: Place, content: bytes) -> None:
    """The whole content or nothing: a reader sees the old file until the new one is complete on disk."""
    if isinstance(path, Remote):
        path.put(content)
        return
    assert isinstance(path, Path)
    with clear_errors(path), set_aside(path) as (aside,):
        aside.write_bytes(content)


def write_folder(path: Place, contents: dict[str, bytes]) -> None:
    """A new folder with all its files, visible at once; in an object store, with the last of them."""
    if isinstance(path, Remote):
        for name, content in contents.items():
            (path / name).put(content)
        return
    assert isinstance(path, Path)
    with clear_errors(path), set_aside(path) as (aside,):
        aside.mkdir()
        for name, content in contents.items():
            (aside / name).write_bytes(content)
