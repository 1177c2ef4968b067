"""Two tables: every row beside what its run was, and every run with its whole configuration."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import polars as pl
from polars.io.plugins import register_io_source

from sonde.analysis.frame import run_table, whole_run_table, with_columns_of_runs
from sonde.core.atomic import set_aside
from sonde.metrics.rows import SCHEMA, WATCHED
from sonde.show.exporters.in_turn import in_turn
from sonde.store.run import Runs

Progress = Callable[[int, int], None]
Sink = Callable[[pl.LazyFrame, BinaryIO], object]
FORMULA = r"^[=+\-@\t\r\n]"
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def write_csv(stored: Runs, out: Path, on_progress: Progress) -> list[Path]:
    """`rows.csv` and `runs.csv`; an undefined value is NaN, an empty cell says that there is nothing to say.

    A text that a spreadsheet would take for a formula gets an apostrophe before it; numbers stay numbers.
    """
    return _write(stored, out, "csv", _sink_csv, on_progress)


def write_parquet(stored: Runs, out: Path, on_progress: Progress) -> list[Path]:
    """`rows.parquet` and `runs.parquet`."""
    return _write(stored, out, "parquet", pl.LazyFrame.sink_parquet, on_progress)


def _sink_csv(table: pl.LazyFrame, file: BinaryIO) -> None:
    _without_formulas(table).sink_csv(file)


def _without_formulas(table: pl.LazyFrame) -> pl.LazyFrame:
    schema = table.collect_schema()
    texts = [pl.col(name) for name, kind in schema.items() if kind == pl.String]
    guarded = [
        pl.when(one.str.contains(FORMULA) & ~one.str.contains(NUMBER))
        .then(pl.lit("'") + one)
        .otherwise(one)
        .name.keep()
        for one in texts
    ]
    names = {name: f"'{name}" for name in schema.names() if re.search(FORMULA, name)}
    return table.with_columns(guarded).rename(names)


def _write(stored: Runs, out: Path, suffix: str, sink: Sink, on_progress: Progress) -> list[Path]:
    paths = [out / f"rows.{suffix}", out / f"runs.{suffix}"]
    # Files that are open: Polars takes no path that is not UTF-8.
    with (
        set_aside(*paths) as (rows, runs),
        rows.open("wb") as of_rows,
        runs.open("wb") as of_runs,
    ):
        sink(_streamed(stored, on_progress), of_rows)
        sink(whole_run_table(stored).lazy(), of_runs)
    return paths


def _streamed(stored: Runs, on_progress: Progress) -> pl.LazyFrame:
    """The frame of all runs, of which one run's rows are in memory."""
    known = run_table(stored)
    schema = WATCHED if stored.watched else SCHEMA
    nothing = pl.DataFrame(schema=schema)

    def batches(
        columns: list[str] | None, predicate: pl.Expr | None, most: int | None, size: int | None
    ) -> Iterator[pl.DataFrame]:
        for run, rows in in_turn(stored, on_progress):
            yield with_columns_of_runs(
                pl.concat([nothing, rows], how="diagonal"), known.filter(pl.col("run") == run.id)
            )

    return register_io_source(batches, schema=with_columns_of_runs(nothing, known).schema)
