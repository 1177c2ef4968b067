"""One process per run: the second to come is told who was first."""

import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock
from pydantic_core import from_json

from sonde.core.errors import SondeError
from sonde.store import files
from sonde.store.lease import ABANDONED, lease
from sonde.store.limits import JSON
from sonde.store.place import Place
from sonde.store.remote import Remote

BEAT = 5.0  # seconds between two beats at least
PUT = 20.0  # the same in an object store


class Held(SondeError):
    """Another process is working on the run."""


@contextmanager
def hold(root: Place, run: str) -> Iterator[Callable[[], None]]:
    """Hold a run of a store; the operating system lets go when the process ends, however it ends.

    In an object store a lease stands in for the lock; it ends a minute after a process that was killed.
    Whoever holds it calls what it is given as it advances: readers see the last beat.
    """
    if isinstance(root, Remote):
        with lease(root / ".locks" / f"{run}.json", _me(), lambda holder: _leased(run, holder)) as beat:
            yield beat
        return
    folder = files.inner_folder(root / ".locks")
    assert isinstance(folder, Path)
    files.refuse_link(folder / f"{run}.lock")
    lock = filelock.FileLock(folder / f"{run}.lock")
    with files.clear_errors(folder):
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise _held(run, _who(_signed(root, run))) from None
    sign = None
    try:
        sign = Sign(root, run)
        yield sign.beat
    finally:
        if sign is not None:
            sign.remove()
        lock.release()


class Sign:
    """Who works on a run, for readers: written beside it, renewed as the work advances, removed at its end."""

    def __init__(self, root: Place, run: str) -> None:
        self._at, self._me = _signed(root, run), _me()
        self._beaten = time.monotonic()
        if isinstance(self._at, Path):
            files.inner_folder(self._at.parent)
        self._write()

    def beat(self) -> None:
        """The work goes on.  What cannot be written is made up for by the next beat."""
        now = time.monotonic()
        if now - self._beaten < (BEAT if isinstance(self._at, Path) else PUT):
            return
        self._beaten = now
        with suppress(OSError, SondeError):
            if isinstance(self._at, Path):
                os.utime(self._at)
            else:
                self._write()

    def remove(self) -> None:
        with suppress(OSError, SondeError):
            self._at.unlink(missing_ok=True)

    def _write(self) -> None:
        beat = {"beat": datetime.now(UTC).isoformat(timespec="seconds")}
        files.write(self._at, json.dumps(self._me | beat).encode())


def _signed(root: Place, run: str) -> Place:
    return root / ".locks" / (f"{run}.json" if isinstance(root, Remote) else f"{run}.holder")


def _me() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _held(run: str, who: str) -> Held:
    return Held(f"run {run} is held by {who}: wait for it, or stop it")


def _leased(run: str, holder: dict[str, Any]) -> Held:
    return Held(f"{_held(run, _named(holder))}; the hold of a process that died ends within {ABANDONED:.0f} s")


def _who(holder: Place) -> str:
    try:
        return _named(from_json(files.read(holder, JSON)))
    except (OSError, ValueError, SondeError):
        return _named({})


def _named(known: dict[str, Any]) -> str:
    try:
        return f"process {known['pid']} on {known['host']} since {known['since']}"
    except (KeyError, TypeError):
        return "another process"
