"""Write aside, then rename into place: whatever has its name is whole, and complete on disk."""

import os
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
    mark = "" if locked else f"{uuid.uuid4().hex[:8]}-"
    aside = {target.with_name(f"{ASIDE}{mark}{target.name}"): target for target in targets}
    if locked:
        _remove(*aside)
    try:
        yield list(aside)
        for path, target in aside.items():
            if locked and target.is_dir():
                _remove(target)
            path.replace(target)
    finally:
        _remove(*aside)


def _remove(*paths: Path) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):  # nothing is left there, or what stands in the way was told before
                path.unlink(missing_ok=True)


def to_disk(path: Path, content: bytes) -> None:
    """A new file, complete on disk when this returns."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
