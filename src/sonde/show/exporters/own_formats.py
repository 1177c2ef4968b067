"""Formats that need no other tool: two tables as CSV or Parquet, and a store without weights.

The tables are: every row beside what its run was, and every run with its whole configuration.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import polars as pl
from polars.io.plugins import register_io_source

from sonde.analysis.runs import run_table, whole_run_table, with_columns_of_runs
from sonde.core.atomic import set_aside
from sonde.core.errors import SondeError
from sonde.metrics.rows import SCHEMA, WATCHED
from sonde.show.exporters.series import ExportProgress, runs_with_rows
from sonde.store.listing import tell
from sonde.store.publish import publish
from sonde.store.run import Runs

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
