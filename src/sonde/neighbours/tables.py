"""Two tables: every row beside what its run was, and every run with its whole configuration."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import polars as pl
from polars.io.plugins import register_io_source

from sonde.atomic import set_aside
from sonde.neighbours.in_turn import in_turn
from sonde.rows import SCHEMA, WATCHED
from sonde.runs.frame import beside, lines, whole_lines
from sonde.store.stored import Runs

Progress = Callable[[int, int], None]
Sink = Callable[[pl.LazyFrame, BinaryIO], object]


def write_csv(stored: Runs, out: Path, on_progress: Progress) -> list[Path]:
    """`rows.csv` and `runs.csv`; an undefined value is NaN, an empty cell says that there is nothing to say."""
    return _write(stored, out, "csv", pl.LazyFrame.sink_csv, on_progress)


def write_parquet(stored: Runs, out: Path, on_progress: Progress) -> list[Path]:
    """`rows.parquet` and `runs.parquet`."""
    return _write(stored, out, "parquet", pl.LazyFrame.sink_parquet, on_progress)


def _write(stored: Runs, out: Path, suffix: str, sink: Sink, on_progress: Progress) -> list[Path]:
    paths = [out / f"rows.{suffix}", out / f"runs.{suffix}"]
    # Files that are open: Polars takes no path that is not UTF-8.
    with (
        set_aside(*paths) as (rows, runs),
        rows.open("wb") as of_rows,
        runs.open("wb") as of_runs,
    ):
        sink(_streamed(stored, on_progress), of_rows)
        sink(whole_lines(stored).lazy(), of_runs)
    return paths


def _streamed(stored: Runs, on_progress: Progress) -> pl.LazyFrame:
    """The frame of all runs, of which one run's rows are in memory."""
    known = lines(stored)
    schema = WATCHED if stored.watched else SCHEMA
    nothing = pl.DataFrame(schema=schema)

    def batches(
        columns: list[str] | None, predicate: pl.Expr | None, most: int | None, size: int | None
    ) -> Iterator[pl.DataFrame]:
        for run, rows in in_turn(stored, on_progress):
            yield beside(pl.concat([nothing, rows], how="diagonal"), known.filter(pl.col("run") == run.id))

    return register_io_source(batches, schema=beside(nothing, known).schema)
