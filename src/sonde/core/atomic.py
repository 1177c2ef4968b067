"""Write aside, then rename into place: whatever has its name is whole, and complete on disk."""

import hashlib
import os
import platform
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ASIDE = ".aside-"  # how every file or folder that is not in place yet begins


@contextmanager
def set_aside(*targets: Path, locked: bool = False) -> Iterator[list[Path]]:
    """A path aside for each file or folder; they take their names together at the end, or nothing is left of them.

    `locked`: nobody else writes these, so what a killed process left aside is removed first, and at the end a damaged
    folder in the way.  Otherwise several may write at once: the last one's file stands, and a folder stays the first's.
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
    """What follows ASIDE in a name: who writes it, so that `sweep` knows, and something that nobody else has."""
    return f"{_me(os.getpid())}{uuid.uuid4().hex[:8]}-"


def sweep(folder: Path) -> None:
    """Remove what processes of this machine that are no more left aside there."""
    try:
        found = [path for path in folder.iterdir() if path.name.startswith(ASIDE)]
    except OSError:
        return
    for path in found:
        writer = re.match(r"[0-9a-f]{6}-(\d{1,9})-", path.name.removeprefix(ASIDE))
        if writer and writer[0] == _me(int(writer[1])) and not is_alive(int(writer[1])):
            _remove(path)


def _me(process: int) -> str:
    """The machine and the process, as they stand in a name."""
    return f"{hashlib.sha256(platform.node().encode()).hexdigest()[:6]}-{process}-"


def is_alive(process: int) -> bool:
    """Whether there is such a process on this machine, or no harmless way to ask."""
    if os.name == "posix":
        try:
            os.kill(process, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except OSError:  # somebody else's
            return True
    return True


def _remove(*paths: Path) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):  # nothing is left there, or what stands in the way was told before
                path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Bring a file, or a folder with all it holds, to the disk: after a power failure it is there."""
    if path.is_dir():
        for inner in path.iterdir():
            _sync(inner)
        sync_folder(path)
    else:
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system can: a file that was renamed keeps its new name."""
    if os.name == "posix":
        with suppress(OSError):  # some file systems refuse it
            number = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)
