"""The status of a stored run: running, stalled, interrupted, or ended.

The manifest says what was reached, not whether a process goes on.  A process that works on a run keeps a heartbeat
file beside it (`store/lock.py`) and renews it as its loop advances.  The status follows from the manifest, from that
file and from the process it names.
"""

import os
import platform
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic_core import from_json

from sonde.core.atomic import is_alive
from sonde.core.errors import SondeError
from sonde.store import files
from sonde.store.files import JSON_BYTES, Place
from sonde.store.lock import ABANDONED
from sonde.store.remote import Remote
from sonde.store.schemas import Manifest

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
        return self.state if self.why is None else f"{self.state}: {self.why}"


@dataclass(frozen=True)
class _HeartbeatFile:
    """The process that works on a run, and when it last advanced."""

    process: int
    host: str
    since: datetime
    beat: datetime
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
    silent = (now - heartbeat.beat).total_seconds()
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
    return RunStatus("stalled", f"no step since {heartbeat.beat:%Y-%m-%d %H:%M:%S} UTC; {whose}")


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
            beat = _moment(known.get("beat", known.get("renewed")))
        else:
            assert isinstance(locks, Path)
            holder = locks / f"{path.name}.holder"
            known, renewed = from_json(files.read(holder, JSON_BYTES)), None
            beat = datetime.fromtimestamp(holder.stat().st_mtime, UTC)
        since = _moment(known["since"])
        return _HeartbeatFile(int(known["pid"]), str(known["host"]), since, beat, renewed)
    except (OSError, SondeError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _is_there(process: int) -> bool:
    """Whether the process exists and is no zombie."""
    known = _proc(process)
    return is_alive(process) if known is None else known[:1] != ["Z"]


def _began_after(process: int, moment: datetime) -> bool:
    """Whether the number belongs to another process now; False where the system does not say."""
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
    return Path(path).read_text(errors="replace").splitlines()
