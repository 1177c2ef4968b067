"""Stored runs in the formats of other tools, and in those that need no tool.

Here are the table of layouts, the formats without a tool (two tables as CSV or Parquet, and a store without weights)
and what the others share.  Each tool is an extra: its module is imported when its layout is chosen.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl
from polars.io.plugins import register_io_source

from sonde.analysis.runs import run_table, whole_run_table, with_columns_of_runs
from sonde.core.errors import SondeError, installation, pick, tell
from sonde.metrics.rows import SCHEMA, WATCHED
from sonde.store.files import set_aside
from sonde.store.listing import publish
from sonde.store.run import Run, Runs

ExportProgress = Callable[[int, int], None]
"""Called with how many runs are done, and how many there are."""

Write = Callable[[Runs, Path, ExportProgress], list[Path]]
"""(runs without rows, folder, on_progress) → what was written.  Rows are read one run at a time."""


@dataclass(frozen=True, kw_only=True)
class ExportLayout:
    """A format: what is written, by which function, and how it is opened."""

    what: str
    written_by: str  # function of this module, or of one beside it: module.function
    opened_with: str
    extra: str | None = None  # that brings the tool
    alone: bool = False  # in a folder that holds nothing else
    run_by_run: bool = False  # each run appears when it is complete; otherwise all of them at once


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
        try:
            rows = run.rows
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


_Sink = Callable[[pl.LazyFrame, BinaryIO], object]
_FORMULA = r"^[=+\-@\t\r\n]"
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def write_csv(stored: Runs, out: Path, on_progress: ExportProgress) -> list[Path]:
    """`rows.csv` and `runs.csv`; an undefined value is NaN; an empty cell means that the column does not apply.

    A text that a spreadsheet would read as a formula gets an apostrophe before it; numbers stay numbers.
    """
    return _write(stored, out, "csv", _sink_csv, on_progress)


def write_parquet(stored: Runs, out: Path, on_progress: ExportProgress) -> list[Path]:
    """`rows.parquet` and `runs.parquet`."""
    return _write(stored, out, "parquet", pl.LazyFrame.sink_parquet, on_progress)


def _sink_csv(table: pl.LazyFrame, file: BinaryIO) -> None:
    _without_formulas(table).sink_csv(file)


def _without_formulas(table: pl.LazyFrame) -> pl.LazyFrame:
    schema = table.collect_schema()
    texts = [pl.col(name) for name, kind in schema.items() if kind == pl.String]
    guarded = [
        pl.when(one.str.contains(_FORMULA) & ~one.str.contains(_NUMBER))
        .then(pl.lit("'") + one)
        .otherwise(one)
        .name.keep()
        for one in texts
    ]
    names = {name: f"'{name}" for name in schema.names() if re.search(_FORMULA, name)}
    return table.with_columns(guarded).rename(names)


def _write(stored: Runs, out: Path, suffix: str, sink: _Sink, on_progress: ExportProgress) -> list[Path]:
    paths = [out / f"rows.{suffix}", out / f"runs.{suffix}"]
    # Open files, since Polars refuses paths that are not UTF-8.
    with (
        set_aside(*paths) as (rows, runs),
        rows.open("wb") as of_rows,
        runs.open("wb") as of_runs,
    ):
        sink(_streamed(stored, on_progress), of_rows)
        sink(whole_run_table(stored).lazy(), of_runs)
    return paths


def _streamed(stored: Runs, on_progress: ExportProgress) -> pl.LazyFrame:
    """The frame of all runs; the rows of one run are in memory at a time."""
    known = run_table(stored)
    schema = WATCHED if stored.watched else SCHEMA
    nothing = pl.DataFrame(schema=schema)

    def batches(
        columns: list[str] | None, predicate: pl.Expr | None, most: int | None, size: int | None
    ) -> Iterator[pl.DataFrame]:
        for run, rows in runs_with_rows(stored, on_progress):
            yield with_columns_of_runs(
                pl.concat([nothing, rows], how="diagonal"), known.filter(pl.col("run") == run.id)
            )

    return register_io_source(batches, schema=with_columns_of_runs(nothing, known).schema)


def write_store(stored: Runs, out: Path, on_progress: ExportProgress) -> list[Path]:
    """A store of the runs that have ended, without weights; every command reads it.  Names the runs it leaves out."""
    runs = stored.every
    others = {path.name for path in out.iterdir() if path.is_dir()} - {run.id for run in runs}
    if others:
        raise SondeError(f"{out} holds {min(others)}, which is not in this export: choose another --out")
    paths = []
    for done, run in enumerate(runs):
        on_progress(done, len(runs))
        written, left_out = publish(run.path.parent, out, [run.id])
        paths += [out / id for id in written]
        for id, why in left_out.items():
            tell(f"left out: {id} ({why})")
    on_progress(len(runs), len(runs))
    if not paths:
        raise SondeError(f"nothing to write in {out}: no trained run has come to its end")
    return paths


LAYOUTS: dict[str, ExportLayout] = {
    "csv": ExportLayout(
        what="rows.csv, every row beside its run's rule, seed and differing keys, and runs.csv",
        written_by="write_csv",
        opened_with='polars.read_csv("{out}/rows.csv")',
    ),
    "parquet": ExportLayout(
        what="the same two tables as Parquet",
        written_by="write_parquet",
        opened_with='polars.read_parquet("{out}/rows.parquet")',
    ),
    "runs": ExportLayout(
        what="the runs that have ended, without weights, host names and command lines: a store to hand round",
        written_by="write_store",
        opened_with="sonde report --runs {out}",
        alone=True,
        run_by_run=True,
    ),
    "tensorboard": ExportLayout(
        what="an event file for each run, its configuration as hparams",
        written_by="tensorboard_events.write_events",
        opened_with="tensorboard --logdir {out}/tensorboard",
        extra="tensorboard",
        run_by_run=True,
    ),
    "wandb": ExportLayout(
        what="an offline run of Weights & Biases for each run",
        written_by="wandb_offline.write_offline_runs",
        opened_with="wandb sync {out}/wandb/offline-run-*",
        extra="wandb",
        run_by_run=True,
    ),
    "mlflow": ExportLayout(
        what="an experiment in a SQLite database of MLflow",
        written_by="mlflow_database.write_database",
        opened_with="mlflow ui --backend-store-uri sqlite:///{out}/mlflow.db",
        extra="mlflow",
    ),
}


def writer(name: str) -> Write:
    """The function that writes a layout; an error that states the fix where its tool is not installed."""
    layout = pick(LAYOUTS, name, "layout")
    module, _, function = layout.written_by.rpartition(".")
    try:
        found: Write = getattr(import_module(f"{__name__}.{module}".rstrip(".")), function)
    except ModuleNotFoundError as missing:
        if layout.extra is None or (missing.name or "").startswith("sonde"):
            raise
        raise SondeError(
            f"--layout {name} needs the extra {layout.extra}, and {missing.name} is not installed: "
            f"{installation(layout.extra)}"
        ) from None
    return found
