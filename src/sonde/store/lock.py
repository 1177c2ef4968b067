"""One process per run: a second process gets an error that names the first; and the status of a run.

On this machine the operating system locks a file, and releases it when the process ends, however it ends.  Beside it
is a heartbeat file, which names the process and is renewed as its work advances: readers take the status from it.

An object store has no locks.  A lease takes their place: an object that names its holder and is renewed while the run
is trained.  It is advisory: two processes may hold one run if the first was silent for a minute but alive.  Then both
compute the same bits, each puts its contents before the manifest that names them, and the work of one is lost.

The manifest says what was reached, not whether a process goes on.  The status (running, stalled, interrupted or ended)
follows from the manifest, from the heartbeat file or lease, and from the process that it names.
"""

import json
import os
import platform
import shlex
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import filelock
from pydantic_core import from_json

from sonde.core.errors import SondeError
from sonde.store import files
from sonde.store.files import JSON_BYTES, Place, is_alive
from sonde.store.remote import Remote
from sonde.store.schemas import Manifest

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
        with _lease(root / ".locks" / f"{run}.json", run) as touch:
            yield touch
        return
    folder = files.make_inner_folder(root / ".locks")
    assert isinstance(folder, Path)
    files.refuse_link(folder / f"{run}.lock")
    lock = filelock.FileLock(folder / f"{run}.lock")
    with files.clear_errors(folder):
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise _held(run, _read_holder(_heartbeat_file(root, run))) from None
    heartbeat = None
    try:
        heartbeat = Heartbeat(root, run)
        yield heartbeat.touch
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
            files.make_inner_folder(self._at.parent)
        self._write()

    def touch(self) -> None:
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
        """Remove the file; an error is ignored, since readers see that the process is gone."""
        with suppress(OSError, SondeError):
            self._at.unlink(missing_ok=True)

    def _write(self) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        files.write(self._at, json.dumps({**self._me, "beat": now}).encode())


def _heartbeat_file(root: Place, run: str) -> Place:
    return root / ".locks" / (f"{run}.json" if isinstance(root, Remote) else f"{run}.holder")


def _me() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _held(run: str, holder: Any) -> Held:
    """The error that names the holder, where its file or lease can be read."""
    try:
        who = f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (KeyError, TypeError):
        who = "another process"
    return Held(f"run {run} is held by {who}: wait for it, or stop it")


def _read_holder(file: Place) -> Any:
    try:
        return from_json(files.read(file, JSON_BYTES))
    except (OSError, ValueError, SondeError):
        return None


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────
RENEWED = 20.0  # seconds between renewals
ABANDONED = 60.0  # seconds without one, after which another may take over
TAKEOVER_PAUSE = 1.0  # seconds after which two that take over at once see who came last


@contextmanager
def _lease(at: Remote, run: str) -> Iterator[Callable[[], None]]:
    """Hold the object `at`, or raise `Held`; a heartbeat is put with the next renewal."""
    mine = _Lease(at)
    mine.take(run)
    done = threading.Event()
    renewer = threading.Thread(target=mine.renew, args=(done,), daemon=True)
    renewer.start()
    try:
        yield mine.touch
    finally:
        done.set()
        renewer.join()
        mine.release()


class _Lease:
    def __init__(self, at: Remote) -> None:
        self.at, self.me = at, {**_me(), "token": uuid.uuid4().hex}
        self.touch()

    def touch(self) -> None:
        self.me["beat"] = datetime.now(UTC).isoformat(timespec="seconds")

    def take(self, run: str) -> None:
        ends = f"the hold of a process that died ends within {ABANDONED:.0f} s"
        try:
            self.at.create(self._content())
            return
        except FileExistsError:
            holder = self._holder()
        if self._is_me(holder):
            return  # the answer to our first try was lost
        if not _is_abandoned(holder):
            raise Held(f"{_held(run, holder)}; {ends}")
        self.at.put(self._content())
        time.sleep(TAKEOVER_PAUSE)
        holder = self._holder()
        if holder and not self._is_me(holder):
            raise Held(f"{_held(run, holder)}; {ends}")

    def renew(self, done: threading.Event) -> None:
        """Renew the lease until done, unless another process took it; a failed renewal is made up for by the next."""
        while not done.wait(RENEWED):
            with suppress(SondeError):
                if self._is_me(self._holder()):
                    self.at.put(self._content())

    def release(self) -> None:
        """Remove the object; one that cannot be removed is abandoned in a minute."""
        with suppress(SondeError):
            if self._is_me(self._holder()):
                self.at.unlink(missing_ok=True)

    def _is_me(self, holder: dict[str, Any]) -> bool:
        return bool(holder.get("token") == self.me["token"])

    def _holder(self) -> dict[str, Any]:
        """The holder that the object names; empty where there is none or it cannot be read."""
        try:
            known = json.loads(self.at.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def _content(self) -> bytes:
        return json.dumps({**self.me, "renewed": datetime.now(UTC).isoformat()}).encode()


def _is_abandoned(holder: dict[str, Any]) -> bool:
    """Whether the last renewal is too long ago, by the holder's clock and ours, or its process of this host is gone."""
    try:
        age = (datetime.now(UTC) - datetime.fromisoformat(holder["renewed"])).total_seconds()
        return age > ABANDONED or (holder["host"] == platform.node() and not is_alive(holder["pid"]))
    except (KeyError, TypeError, ValueError):
        return True


_State = Literal["running", "stalled", "interrupted", "complete", "diverged", "failed"]

SILENT = 120.0  # seconds without a heartbeat after which a run is stalled
UNSEEN = 3600.0  # the same for a process of another machine, after which it counts as gone


@dataclass(frozen=True)
class RunStatus:
    """The state of a run in a word, and the reason."""

    state: _State
    why: str | None = None  # None where there is nothing to add

    @property
    def words(self) -> str:
        """The state, and the reason where there is one."""
        return self.state if self.why is None else f"{self.state}: {self.why}"


@dataclass(frozen=True)
class _HeartbeatFile:
    """The process that works on a run, and when it last advanced."""

    process: int
    host: str
    since: datetime
    touched: datetime
    renewed: datetime | None  # when the lease was renewed; leases are, whether or not the loop advances


def run_status(path: Place, manifest: Manifest) -> RunStatus:
    """The status of the run in this folder.

    running: its process advances.  stalled: its process lives, but took no step for two minutes.
    interrupted: no process works on it; a trained run can be resumed.
    complete, diverged, failed: as its manifest says.
    """
    if manifest.state == "complete" or manifest.state == "diverged":
        return RunStatus(manifest.state, manifest.message)
    found = _at_work(_read_heartbeat(path))
    if found is not None:
        return found
    if manifest.state == "failed":
        return RunStatus("failed", manifest.message)
    return RunStatus("interrupted", _how_to_go_on(manifest))


def _at_work(heartbeat: _HeartbeatFile | None) -> RunStatus | None:
    """Running or stalled; None where no process works on it."""
    if heartbeat is None:
        return None
    here = heartbeat.host == platform.node()
    now = datetime.now(UTC)
    silent = (now - heartbeat.touched).total_seconds()
    if here and not _is_there(heartbeat.process):
        return None
    if heartbeat.renewed is not None and (now - heartbeat.renewed).total_seconds() > ABANDONED and not here:
        return None
    if silent <= SILENT:
        return RunStatus("running")
    if here and _began_after(heartbeat.process, heartbeat.since):
        return None
    if not here and heartbeat.renewed is None and silent > UNSEEN:
        return None
    whose = f"process {heartbeat.process} lives" if here else "its process on another machine cannot be seen from here"
    return RunStatus("stalled", f"no step since {heartbeat.touched:%Y-%m-%d %H:%M:%S} UTC; {whose}")


def _how_to_go_on(manifest: Manifest) -> str | None:
    """How to resume a run, or that a watched run cannot be."""
    if not manifest.sessions:
        return None
    session = manifest.sessions[-1]
    if "from_epoch" not in session:
        return "its process is gone; what was written stays"
    command = (session.get("environment") or {}).get("command")
    if not isinstance(command, list) or command[:1] not in (["sonde"], ["__main__.py"]):
        return "what began it resumes it"
    return f"`{shlex.join(['sonde', *map(str, command[1:])])}` resumes it"


def _read_heartbeat(path: Place) -> _HeartbeatFile | None:
    """The heartbeat file of a run, or its lease; None where there is none or it cannot be read."""
    locks = path.parent / ".locks"
    try:
        if isinstance(locks, Remote):
            known = from_json(files.read(locks / f"{path.name}.json", JSON_BYTES))
            renewed = _moment(known["renewed"]) if "renewed" in known else None
            touched = _moment(known.get("beat", known.get("renewed")))
        else:
            assert isinstance(locks, Path)
            holder = locks / f"{path.name}.holder"
            known, renewed = from_json(files.read(holder, JSON_BYTES)), None
            touched = datetime.fromtimestamp(holder.stat().st_mtime, UTC)
        since = _moment(known["since"])
        return _HeartbeatFile(int(known["pid"]), str(known["host"]), since, touched, renewed)
    except (OSError, SondeError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _is_there(process: int) -> bool:
    """Whether the process exists and is no zombie."""
    known = _proc(process)
    return is_alive(process) if known is None else known[:1] != ["Z"]


def _began_after(process: int, moment: datetime) -> bool:
    """Whether another process has this number now; False where the system does not say."""
    known = _proc(process)
    if not known:
        return False
    try:
        boot = next(int(line.split()[1]) for line in _read("/proc/stat") if line.startswith("btime"))
        began = boot + int(known[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return False
    return began > moment.timestamp() + 5


def _proc(process: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; ["Z"] where there is no such process, None on other systems."""
    if not os.path.exists("/proc/self/stat"):
        return None
    try:
        return _read(f"/proc/{process}/stat")[0].rpartition(")")[2].split()
    except (OSError, IndexError):
        return ["Z"]


def _read(path: str) -> list[str]:
    return Path(path).read_text("utf-8", errors="replace").splitlines()
