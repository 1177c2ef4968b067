"""Tidy rows beside what their runs were: a table that needs no second one to be grouped by rule, seed or width."""

from typing import Any

import polars as pl

from sonde.runs.configurations import all_described, differing, shown
from sonde.store.load import Run, Runs, WatchedRun

ALWAYS = ("model", "rule", "task", "seed")
LIMIT = 2**63  # of whole numbers in a column


def frame(stored: Runs) -> pl.DataFrame:
    """Every row with its run's model, rule, task, seed and state, and each key in which the runs differ."""
    return beside(stored.rows, lines(stored))


def lines(stored: Runs) -> pl.DataFrame:
    """One line per run: model, rule, task, seed, state, and the dotted keys in which runs differ.

    A watched run has no configuration: its model has a name, the rest is null.
    """
    flats = all_described(stored.runs)
    keys = [key for key in differing(flats.values()) if key not in ALWAYS]
    known = [flats[run.id] for run in stored.runs] + [{"model": run.about["model"]} for run in stored.watched]
    runs: list[Run | WatchedRun] = [*stored.runs, *stored.watched]
    return pl.DataFrame(
        [
            pl.Series("run", [run.id for run in runs], dtype=pl.String),
            *(_column(key, [flat.get(key) for flat in known]) for key in ALWAYS),
            pl.Series("state", [run.manifest.state for run in runs], dtype=pl.String),
            *(_column(key, [flat.get(key) for flat in known]) for key in keys),
        ]
    )


def beside(rows: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
    """The rows in their order, with the columns of their run before what was measured."""
    joined = rows.join(lines, on="run", how="left", maintain_order="left")
    return joined.select(*lines.columns, *(name for name in rows.columns if name != "run"))


def _column(key: str, values: list[Any]) -> pl.Series:
    """As numbers, truths or text where all are; else each as `--only` would write it."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and all(abs(value) < LIMIT for value in values if isinstance(value, int)):
        whole = pl.Int64 if kinds == {int} or key == "seed" else pl.Float64
        return pl.Series(key, values, dtype=whole if kinds else None)
    if kinds in ({bool}, {str}):
        return pl.Series(key, values)
    return pl.Series(key, [None if value is None else shown(value) for value in values], dtype=pl.String)
