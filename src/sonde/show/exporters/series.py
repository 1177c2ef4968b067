"""Stored runs one after the other, for formats of single series: names, points, tags and times."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl

from sonde.core.errors import SondeError
from sonde.store.folder import RunFolder
from sonde.store.journal import read_watched
from sonde.store.listing import tell
from sonde.store.run import Run, Runs

ExportProgress = Callable[[int, int], None]
"""Called with how many runs are done, and how many there are."""

REASON_PREFIX = "undefined"
"""The reasons of undefined values are exported under this prefix."""


@dataclass(frozen=True)
class Point:
    """One row of a series: a value, or the reason why there is none."""

    series: str
    step: int
    value: float
    reason: str | None


def runs_with_rows(
    stored: Runs, on_progress: ExportProgress = lambda done, total: None
) -> Iterator[tuple[Run, pl.DataFrame]]:
    """Every run with its rows; the rows of one run are in memory at a time.

    A run that cannot be read is left out, with a notice.
    """
    runs = stored.every
    for done, run in enumerate(runs):
        on_progress(done, len(runs))
        read = read_watched if run.is_watched else RunFolder.read
        try:
            _, rows = read(RunFolder(run.path))
        except SondeError as error:
            tell(f"left out: {run.id} ({error})")
            continue
        yield run, rows
    on_progress(len(runs), len(runs))


def steps_of(rows: pl.DataFrame) -> Iterator[tuple[int, int | None, list[Point]]]:
    """(step, epoch, all points measured then), in the order of steps."""
    names = [name for name in ("step", "epoch", "metric", "layer", "module", "value", "reason") if name in rows.columns]
    here: list[Point] = []
    at: tuple[int, int | None] | None = None
    for row in rows.sort("step", "epoch", maintain_order=True).select(names).iter_rows(named=True):
        if at is not None and at != (row["step"], row["epoch"]):
            yield *at, here
            here = []
        at = row["step"], row["epoch"]
        series = series_name(row["metric"], row["layer"], row.get("module"))
        here.append(Point(series, row["step"], row["value"], row["reason"]))
    if at is not None:
        yield *at, here


def series_name(metric: str, layer: int | None, module: str | None) -> str:
    """`test_acc`, `hidden_norm/layer_3`, `out_rms/encoder.0`: tools group by the part before the slash."""
    place = module if module is not None else None if layer is None else f"layer_{layer}"
    return metric if place is None else f"{metric}/{place}"


def tags(run: Run) -> dict[str, str]:
    """What is known of a run beside its configuration."""
    known: dict[str, Any] = {"run": run.id, "label": run.label, "state": run.status.state}
    known |= {"epoch": run.manifest.epoch, "step": run.manifest.step, "message": run.manifest.message}
    return {key: str(value) for key, value in known.items() if value is not None}


def started(run: Run) -> float:
    """When the first session began, in seconds since 1970; 0 where it is not recorded.  Rows have no times."""
    when = next((session.get("started") for session in run.manifest.sessions), None)
    try:
        return datetime.fromisoformat(str(when)).timestamp()
    except ValueError:
        return 0.0
