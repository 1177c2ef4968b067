"""One process per run: the second to come is told who was first."""

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import filelock

from sonde.errors import SondeError
from sonde.store import files


class Held(SondeError):
    """Another process is working on the run."""


@contextmanager
def hold(root: Path, run: str) -> Iterator[None]:
    """Hold a run of a store; the operating system lets go when the process ends, however it ends."""
    folder = files.make_folder(root / ".locks")
    lock = filelock.FileLock(folder / f"{run}.lock")
    holder = folder / f"{run}.holder"
    with files.clear_errors(folder):
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise Held(f"run {run} is held by {_who(holder)}: wait for it, or stop it") from None
    try:
        files.write(holder, json.dumps(_me()).encode())
        yield
    finally:
        lock.release()


def _me() -> dict[str, object]:
    return {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _who(holder: Path) -> str:
    try:
        known = json.loads(holder.read_text())
        return f"process {known['pid']} on {known['host']} since {known['since']}"
    except (OSError, ValueError, KeyError):
        return "another process"
