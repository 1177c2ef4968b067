"""Tidy rows beside what their runs were: a table that needs no second one to be grouped by rule, seed or width."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from sonde.analysis.configurations import all_described
from sonde.core.run_ids import Flat, differing, flatten, shown
from sonde.store.stored import Run, Runs, WatchedRun

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
    return _table(stored, flats | {run.id: {"model": run.about["model"]} for run in stored.watched}, keys)


def whole_lines(stored: Runs) -> pl.DataFrame:
    """One line per run with its whole configuration; of a watched run, what is known of its model and loop."""
    runs: list[Run | WatchedRun] = [*stored.runs, *stored.watched]
    flats = {run.id: settings(run) for run in runs}
    keys = dict.fromkeys(key for flat in flats.values() for key in flat if key not in ALWAYS)
    return _table(stored, flats, list(keys))


def settings(run: Run | WatchedRun) -> Flat:
    """All that a run was told, defaults too; of a watched run, what is known of its model and loop."""
    if isinstance(run, WatchedRun):
        return flatten({key: value for key, value in run.about.items() if value is not None})
    return flatten({**run.complete_config, "data": run.about.get("data") or {}})


def _table(stored: Runs, flats: Mapping[str, Flat], keys: Sequence[str]) -> pl.DataFrame:
    runs: list[Run | WatchedRun] = [*stored.runs, *stored.watched]
    return pl.DataFrame(
        [
            pl.Series("run", [run.id for run in runs], dtype=pl.String),
            *(_column(key, [flats[run.id].get(key) for run in runs]) for key in ALWAYS),
            pl.Series("state", [run.standing.state for run in runs], dtype=pl.String),
            *(_column(key, [flats[run.id].get(key) for run in runs]) for key in keys),
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
