"""Write aside, then rename into place; a full disk or a locked folder becomes one clear error.

In an object store a put is all of that: the object appears whole or not at all.

A store may be sent by somebody else.  Inside it nothing is written or removed through a symbolic link, and only
regular files are read, up to a limit.  The store's own folder may be a link: the user names it.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from sonde.core.atomic import set_aside, sync_folder
from sonde.core.errors import SondeError
from sonde.store.place import Place
from sonde.store.remote import Remote

P = TypeVar("P", bound=Place)

READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
AT_A_TIME = 1 << 24  # bytes

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


def refuse_link(path: Place) -> None:
    """Nothing inside a store is written or removed through a symbolic link: it may lead anywhere."""
    if isinstance(path, Path) and path.is_symlink():
        raise SondeError(
            f"{path} is a symbolic link: Sonde writes and removes nothing through one; put a folder in its place"
        )


def inner_folder(path: P) -> P:
    """A folder that Sonde keeps inside a store, created if need be."""
    refuse_link(path)
    return make_folder(path)


def read(path: Place, most: int | None = None, *, follow: bool = True) -> bytes:
    """The content of a regular file of at most so many bytes; where a link is not to be followed, not through one."""
    if not isinstance(path, Path):
        return _no_more(path.read_bytes(), most, path)
    if not follow:
        refuse_link(path)
    file = os.open(path, READ if follow else READ | getattr(os, "O_NOFOLLOW", 0))
    try:
        known = os.fstat(file)
        if not stat.S_ISREG(known.st_mode):
            raise SondeError(f"{path} is no regular file: move it away")
        if most is not None and known.st_size > most:
            raise SondeError(f"{path} has {known.st_size:,} bytes, and may have {most:,}: move it away")
        content = os.read(file, known.st_size + 1)
        while len(content) != known.st_size and (more := os.read(file, AT_A_TIME)):  # it grows, or is very large
            content = _no_more(content + more, most, path)
        return content
    finally:
        os.close(file)


def opened(path: Path) -> BinaryIO:
    """A regular file, for reading: a device or a pipe would never end."""
    file = open(os.open(path, READ), "rb")  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise SondeError(f"{path} is no regular file: move it away")
    return file


def _no_more(content: bytes, most: int | None, path: Place) -> bytes:
    if most is not None and len(content) > most:
        raise SondeError(f"{path} has more than the {most:,} bytes that it may have: move it away")
    return content


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
