"""Every command that reads a store, and every way into one from Python, on a store that may be hostile."""

import contextlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from hostile_stores import Grounds
from typer.testing import CliRunner

import sonde
from sonde.cli import Misused, app
from sonde.core import errors
from sonde.core.errors import SondeError
from sonde.show.live.store_poller import PageState, StoreFollower
from sonde.store.listing import present_runs

QUICK: tuple[tuple[str, ...], ...] = (
    ("show",),
    ("show", "--json"),
    ("audit",),
    ("compare",),
    ("recovery",),
    ("diagnose",),
    ("reproduce",),
    ("verify",),
    ("report", "--no-figures", "--out", "{out}/report.html"),
    ("export", "--layout", "csv", "--out", "{out}/csv"),
    ("export", "--layout", "runs", "--out", "{out}/runs"),
    ("rm", "--interrupted", "--yes"),  # the last one: it changes the store
)
REST: tuple[tuple[str, ...], ...] = (
    ("audit", "--json"),
    ("compare", "--unmatched", "--json"),
    ("diagnose", "--json"),
    ("diagnose", "--sarif", "{out}/findings.sarif"),
    ("recovery", "--json"),
    ("reproduce", "--details"),
    ("reproduce", "--json"),
    ("verify", "--json"),
    ("report", "--no-figures", "--with-provenance", "--out", "{out}/provenance.html"),
    ("export", "--layout", "parquet", "--out", "{out}/parquet"),
    ("export", "--layout", "paper", "--out", "{out}/paper"),
    ("export", "--layout", "tensorboard", "--out", "{out}/tensorboard"),
)
SLOW: tuple[tuple[str, ...], ...] = (
    ("report", "--out", "{out}/drawn.html"),
    ("figures", "audit", "--out", "{out}/figures"),
    ("figures", "rules", "--out", "{out}/figures"),
    ("export", "--layout", "wandb", "--out", "{out}/wandb"),
    ("export", "--layout", "mlflow", "--out", "{out}/mlflow"),
)
"""Seconds each: on every twentieth store."""


def read_everything(grounds: Grounds, out: Path, *, much: bool, slow: bool) -> list[str]:
    """Read a store in every way; what went wrong, each with the way it was read."""
    faults = []
    commands = [*(REST if much else ()), *(SLOW if slow else ()), *QUICK]
    for words in commands:
        at = [*(word.format(out=out) for word in words), "--runs", str(grounds.root)]
        faults += _told(" ".join(words), lambda at=at: _command(at))  # type: ignore[misc]
    for run in _some_runs(grounds.root, 4 if much else 2):
        at = ["recompute", run, "--runs", str(grounds.root)]
        faults += _told(f"recompute {run[:40]!r}", lambda at=at: _command(at))  # type: ignore[misc]
    faults += _told("load", lambda: _notebook(grounds.root))
    faults += _told("live", lambda: _live(grounds.root))
    return faults


def _told(what: str, read: Callable[[], None]) -> list[str]:
    errors._told.clear()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            read()
    except (SondeError, Misused):
        return []
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/sonde/" in frame.filename][-1:]
        at = ours[0] if ours else where
        said = (str(error).splitlines() or [""])[0][:120]
        return [f"{what}: {type(error).__name__}: {said} ({Path(at.filename).name}:{at.lineno})"]
    return []


def _command(words: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = CliRunner().invoke(app, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception


def _some_runs(root: Path, many: int) -> list[str]:
    """Those first that the honest store has not, then those with weights: only they can be recomputed."""
    honest = root.parents[1] / "honest"
    try:
        found = present_runs(root)
    except SondeError:
        return []
    return sorted(
        found,
        key=lambda id: ((honest / id).exists(), not (root / id / "weights.safetensors").exists(), id),
    )[:many]


def _notebook(root: Path) -> None:
    stored = sonde.load(root)
    for look in (
        lambda: repr(stored),
        stored._repr_html_,
        lambda: stored.frame(),
        lambda: stored.audit()._repr_html_(),
        lambda: stored.compare()._repr_html_(),
        lambda: [run.facts for run in stored.watched],
        lambda: stored.configs,
    ):
        with contextlib.suppress(SondeError):
            look()


def _live(root: Path) -> None:
    follower = StoreFollower(root)
    follower.refresh()
    state = PageState(str(root), "live")
    stored = follower.stored()
    state.update_findings(stored)
    state.build(stored, follower.stamps)
    follower.refresh()


@contextlib.contextmanager
def guarded(grounds: Grounds) -> Iterator[list[str]]:
    """What happened outside of the store: files of the reader's that changed, code that ran."""
    before = _files(grounds.treasure)
    path, kept = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(grounds.treasure))
    here = os.getcwd()
    faults: list[str] = []
    try:
        yield faults
    finally:
        os.chdir(here)
        sys.path[:] = path
    if grounds.mark.exists():
        faults.append("code of the store was run")
    for name in ("payload", "this"):
        if name in set(sys.modules) - kept:
            faults.append(f"{name} was imported")
            del sys.modules[name]
    if _files(grounds.treasure) != before:
        faults.append("files outside of the store were changed")


def _files(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir() if path.is_file()}


def peak() -> int:
    """The most memory of this process, in megabytes."""
    import re
    import resource

    found = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()) if os.path.exists("/proc") else []
    return int(found[0] if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) // 1000
