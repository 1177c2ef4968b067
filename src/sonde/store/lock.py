"""One process per run: a second process is refused with the name of the first.

On this machine the operating system locks a file, and lets go when the process ends, however it ends.  Beside it lies
a heartbeat file, which names the process and is renewed as its work advances: readers see the run's status by it.

In an object store nothing locks.  There a lease stands in: an object that names its holder and is renewed while the
run is trained.  It is advice: should two processes ever hold one run (the first was silent for a minute, not dead),
both compute the same bits, each puts its contents before the manifest that names them, and the work of one is lost.
"""

import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock
from pydantic_core import from_json

from sonde.core.atomic import is_alive
from sonde.core.errors import SondeError
from sonde.store import files
from sonde.store.files import JSON_BYTES, Place
from sonde.store.remote import Remote

_HEARTBEAT = 5.0  # seconds between two heartbeats at least
_PUT = 20.0  # the same in an object store


class Held(SondeError):
    """Another process is working on the run."""


@contextmanager
def hold(root: Place, run: str) -> Iterator[Callable[[], None]]:
    """Hold a run of a store; a lease of an object store ends a minute after its process was killed.

    The caller calls the function that it is given as it advances: readers see the last heartbeat.
    """
    if isinstance(root, Remote):
        with _lease(root / ".locks" / f"{run}.json", _me(), lambda holder: _leased(run, holder)) as beat:
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
            raise _held(run, _who(_heartbeat_file(root, run))) from None
    heartbeat = None
    try:
        heartbeat = Heartbeat(root, run)
        yield heartbeat.beat
    finally:
        if heartbeat is not None:
            heartbeat.remove()
        lock.release()


class Heartbeat:
    """The heartbeat file of a run: written beside it, renewed as the work advances, removed at its end."""

    def __init__(self, root: Place, run: str) -> None:
        self._at, self._me = _heartbeat_file(root, run), _me()
        self._last = time.monotonic()
        if isinstance(self._at, Path):
            files.inner_folder(self._at.parent)
        self._write()

    def beat(self) -> None:
        """Renew the file, at most every few seconds.  A renewal that fails is made up for by the next."""
        now = time.monotonic()
        if now - self._last < (_HEARTBEAT if isinstance(self._at, Path) else _PUT):
            return
        self._last = now
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


def _heartbeat_file(root: Place, run: str) -> Place:
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
        return _named(from_json(files.read(holder, JSON_BYTES)))
    except (OSError, ValueError, SondeError):
        return _named({})


def _named(known: dict[str, Any]) -> str:
    try:
        return f"process {known['pid']} on {known['host']} since {known['since']}"
    except (KeyError, TypeError):
        return "another process"


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────
RENEWED = 20.0  # seconds between renewals
ABANDONED = 60.0  # seconds without one, after which another may take over
TAKEOVER_PAUSE = 1.0  # seconds after which two that take over at once see who came last


@contextmanager
def _lease(
    at: Remote, me: dict[str, Any], held: Callable[[dict[str, Any]], SondeError]
) -> Iterator[Callable[[], None]]:
    """Hold the object `at`, or raise what `held` makes of its holder; a heartbeat is put with the next renewal."""
    mine = _Lease(at, me)
    mine.take(held)
    done = threading.Event()
    renewer = threading.Thread(target=mine.renew, args=(done,), daemon=True)
    renewer.start()
    try:
        yield mine.beat
    finally:
        done.set()
        renewer.join()
        mine.release()


class _Lease:
    def __init__(self, at: Remote, me: dict[str, Any]) -> None:
        self.at, self.me = at, {**me, "token": uuid.uuid4().hex}
        self.beat()

    def beat(self) -> None:
        self.me["beat"] = datetime.now(UTC).isoformat(timespec="seconds")

    def take(self, held: Callable[[dict[str, Any]], SondeError]) -> None:
        try:
            self.at.create(self._content())
            return
        except FileExistsError:
            holder = self._holder()
        if holder is not None and self._is_me(holder):
            return  # the answer to our first try was lost
        if holder is not None and not _is_abandoned(holder):
            raise held(holder)
        self.at.put(self._content())
        time.sleep(TAKEOVER_PAUSE)
        holder = self._holder()
        if holder is not None and not self._is_me(holder):
            raise held(holder)

    def renew(self, done: threading.Event) -> None:
        """Until done; a renewal that fails is made up for by the next, a lease taken by another is left to it."""
        while not done.wait(RENEWED):
            try:
                if self._is_mine():
                    self.at.put(self._content())
            except SondeError:
                continue

    def release(self) -> None:
        try:
            if self._is_mine():
                self.at.unlink(missing_ok=True)
        except SondeError:
            pass  # it is abandoned in a minute

    def _is_mine(self) -> bool:
        holder = self._holder()
        return holder is not None and self._is_me(holder)

    def _is_me(self, holder: dict[str, Any]) -> bool:
        return bool(holder.get("token") == self.me["token"])

    def _holder(self) -> dict[str, Any] | None:
        """Who the object names; nobody where there is none or it cannot be read."""
        try:
            known = json.loads(self.at.read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return known if isinstance(known, dict) else None

    def _content(self) -> bytes:
        return json.dumps({**self.me, "renewed": datetime.now(UTC).isoformat()}).encode()


def _is_abandoned(holder: dict[str, Any]) -> bool:
    """Whether the last renewal is too long ago, by the holder's clock and ours, or its process of this host is gone."""
    try:
        age = (datetime.now(UTC) - datetime.fromisoformat(holder["renewed"])).total_seconds()
        return age > ABANDONED or (holder["host"] == platform.node() and not is_alive(holder["pid"]))
    except (KeyError, TypeError, ValueError):
        return True
