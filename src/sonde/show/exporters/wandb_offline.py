"""Offline runs of Weights & Biases, written by the package itself; nothing leaves the machine until `wandb sync`."""

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import wandb

from sonde.core.errors import SondeError
from sonde.show.exporters import REASON_PREFIX, ExportProgress, Point, runs_with_rows, steps_of, tags
from sonde.store.files import ASIDE, aside_mark
from sonde.store.run import Runs

_REFUSED = set("/\\#?%:;,'\"")  # characters that W&B refuses in an id
LONGEST_ID = 64
PROJECT = "sonde"


def write_offline_runs(stored: Runs, out: Path, on_progress: ExportProgress) -> list[Path]:
    """A folder for each run, `wandb/offline-run-…`, in place once it is complete.

    A run keeps its id, so what is synced twice is one run.
    """
    done = out / "wandb"
    done.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{ASIDE}{aside_mark()}", dir=out) as aside:
        return [path.replace(done / path.name) for path in _offline_runs(stored, Path(aside), on_progress)]


def _offline_runs(stored: Runs, aside: Path, on_progress: ExportProgress) -> Iterator[Path]:
    """The folders as the package writes them, each complete when it is handed out."""
    for run, rows in runs_with_rows(stored, on_progress):
        log = wandb.init(
            project=PROJECT,
            dir=aside,
            id=_id(run.id),
            name=run.id,
            job_type="watched" if run.is_watched else "trained",
            config={**(run.about if run.is_watched else run.complete_config), "sonde": tags(run)},
            settings=_settings(),
        )
        try:
            for step, epoch, points in steps_of(rows):
                log.log(_line(run.id, step, epoch, points), step=step)
        finally:
            log.finish(exit_code=int(run.manifest.state not in ("complete", "unfinished")))
        yield Path(log.settings.sync_dir)


def _id(run: str) -> str:
    """The run's id, or a hash of it where W&B would refuse it."""
    allowed = len(run) <= LONGEST_ID and not _REFUSED & set(run)
    return run if allowed else hashlib.sha256(run.encode()).hexdigest()[:LONGEST_ID]


def _line(run: str, step: int, epoch: int | None, points: Sequence[Point]) -> dict[str, float | str]:
    """All that was measured at one step; an undefined value is replaced by its reason, under another name."""
    line: dict[str, float | str] = {} if epoch is None else {"epoch": epoch}
    for point in points:
        name = _name(point.series if point.reason is None else f"{REASON_PREFIX}/{point.series}")
        if name in line:
            raise SondeError(f"{run} has several values of {name} at step {step}, and W&B keeps only one: use csv")
        line[name] = point.value if point.reason is None else point.reason
    return line


def _name(series: str) -> str:
    """Names that begin with an underscore are W&B's own."""
    return f"metric/{series}" if series.startswith("_") else series


def _settings() -> wandb.Settings:
    """Offline and silent; of the machine that exports, nothing is recorded."""
    return wandb.Settings(
        mode="offline",
        silent=True,
        console="off",
        save_code=False,
        disable_git=True,
        disable_code=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )
