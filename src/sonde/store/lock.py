"""One process per run: the second to come is told who was first."""

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock

from sonde.errors import SondeError
from sonde.store import files
from sonde.store.lease import ABANDONED, lease
from sonde.store.place import Place
from sonde.store.remote import Remote


class Held(SondeError):
    """Another process is working on the run."""


@contextmanager
def hold(root: Place, run: str) -> Iterator[None]:
    """Hold a run of a store; the operating system lets go when the process ends, however it ends.

    In an object store a lease stands in for the lock; it ends a minute after a process that was killed.
    """
    if isinstance(root, Remote):
        with lease(root / ".locks" / f"{run}.json", _me(), lambda holder: _leased(run, holder)):
            yield
        return
    folder = files.make_folder(root / ".locks")
    assert isinstance(folder, Path)
    lock = filelock.FileLock(folder / f"{run}.lock")
    holder = folder / f"{run}.holder"
    with files.clear_errors(folder):
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise _held(run, _who(holder)) from None
    try:
        files.write(holder, json.dumps(_me()).encode())
        yield
    finally:
        lock.release()


def _me() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _held(run: str, who: str) -> Held:
    return Held(f"run {run} is held by {who}: wait for it, or stop it")


def _leased(run: str, holder: dict[str, Any]) -> Held:
    return Held(
        f"{_held(run, _named(holder))}; the hold of a process that died ends within {ABANDONED:.0f} s"
    )


def _who(holder: Path) -> str:
    try:
        return _named(json.loads(holder.read_text()))
    except (OSError, ValueError):
        return _named({})


def _named(known: dict[str, Any]) -> str:
    try:
        return f"process {known['pid']} on {known['host']} since {known['since']}"
    except KeyError:
        return "another process"
