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

SILENT = 120.0  # seconds without a beat after which a run is stalled
UNSEEN = 3600.0  # the same for a process of another machine, after which it counts as gone


@dataclass(frozen=True)
class RunStatus:
    """One word, and what there is to say about it."""

    state: _State
    why: str | None = None  # in words; None where the word says all

    @property
    def words(self) -> str:
        return self.state if self.why is None else f"{self.state}: {self.why}"


@dataclass(frozen=True)
class _Sign:
    """Who works on a run, and when it last was seen to advance."""

    process: int
    host: str
    since: datetime
    beat: datetime
    renewed: datetime | None  # of a lease, which is renewed whether or not the loop advances


def run_status(path: Place, manifest: Manifest) -> RunStatus:
    """How the run of this folder stands; of one that has not ended, by who works on it.

    running: its process advances.  stalled: its process lives, but no step was seen for two minutes.
    interrupted: nobody works on it; a trained run resumes.  complete, diverged, failed: as its manifest says.
    """
    if manifest.state == "complete" or manifest.state == "diverged":
        return RunStatus(manifest.state, manifest.message)
    found = _at_work(_sign(path))
    if found is not None:
        return found
    if manifest.state == "failed":
        return RunStatus("failed", manifest.message)
    return RunStatus("interrupted", _how_to_go_on(manifest))


def _at_work(sign: _Sign | None) -> RunStatus | None:
    """None where nobody is."""
    if sign is None:
        return None
    here = sign.host == platform.node()
    now = datetime.now(UTC)
    silent = (now - sign.beat).total_seconds()
    if here and not _is_there(sign.process):
        return None
    if sign.renewed is not None and (now - sign.renewed).total_seconds() > ABANDONED and not here:
        return None
    if silent <= SILENT:
        return RunStatus("running")
    if here and _began_after(sign.process, sign.since):
        return None
    if not here and sign.renewed is None and silent > UNSEEN:
        return None
    whose = f"process {sign.process} lives" if here else "its process on another machine cannot be seen from here"
    return RunStatus("stalled", f"no step since {sign.beat:%Y-%m-%d %H:%M:%S} UTC; {whose}")


def _how_to_go_on(manifest: Manifest) -> str | None:
    """The command that resumes a run; a run that was watched has none."""
    if not manifest.sessions:
        return None
    session = manifest.sessions[-1]
    if "from_epoch" not in session:
        return "its process is gone; what was written stays"
    command = (session.get("environment") or {}).get("command")
    if not isinstance(command, list) or command[:1] not in (["sonde"], ["__main__.py"]):
        return "what began it resumes it"
    return f"`{shlex.join(['sonde', *map(str, command[1:])])}` resumes it"


def _sign(path: Place) -> _Sign | None:
    """What was signed beside a run; None where nothing was, or it cannot be read."""
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
        return _Sign(int(known["pid"]), str(known["host"]), since, beat, renewed)
    except (OSError, SondeError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _is_there(process: int) -> bool:
    """Whether the process is at work, and no zombie that nobody buried."""
    known = _proc(process)
    return is_alive(process) if known is None else known[:1] != ["Z"]


def _began_after(process: int, moment: datetime) -> bool:
    """Whether the number belongs to another process by now; False where the system does not tell."""
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
    """What Linux tells of a process from its state on; ["Z"] where there is none, None on other systems."""
    if not os.path.exists("/proc/self/stat"):
        return None
    try:
        return _read(f"/proc/{process}/stat")[0].rpartition(")")[2].split()
    except (OSError, IndexError):
        return ["Z"]


def _read(path: str) -> list[str]:
    return Path(path).read_text(errors="replace").splitlines()
