"""Tables of stored runs: rows beside the configuration of their run, and each run at a glance."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from sonde.analysis.runs import by_recipe, flat_configs
from sonde.core.run_ids import Flat, differing, flatten, shown
from sonde.store.run import Run, Runs

_ALWAYS = ("model", "rule", "task", "seed")
_LARGEST = 2**63  # whole number in a column
OVERVIEW_METRICS = ("test_acc", "test_loss", "train_loss")  # the metrics that an overview shows
_MOST_KEYS = 3  # columns for keys in which runs differ


def frame(stored: Runs) -> pl.DataFrame:
    """Every row with its run's model, rule, task, seed and state, and each key in which the runs differ."""
    return with_columns_of_runs(stored.rows, run_table(stored))


def run_table(stored: Runs) -> pl.DataFrame:
    """One line per run: model, rule, task, seed, state, and the dotted keys in which runs differ.

    A watched run has no configuration: its model has a name, the rest is null.
    """
    flats = flat_configs(stored.runs)
    keys = [key for key in differing(flats.values()) if key not in _ALWAYS]
    return _table(stored, flats | {run.id: {"model": run.about["model"]} for run in stored.watched}, keys)


def whole_run_table(stored: Runs) -> pl.DataFrame:
    """One line per run with its whole configuration; of a watched run, what is known of its model and loop."""
    flats = {run.id: run_settings(run) for run in stored.every}
    keys = dict.fromkeys(key for flat in flats.values() for key in flat if key not in _ALWAYS)
    return _table(stored, flats, list(keys))


def run_settings(run: Run) -> Flat:
    """All that a run was told, defaults too; of a watched run, what is known of its model and loop."""
    if run.is_watched:
        return flatten({key: value for key, value in run.about.items() if value is not None})
    return flatten({**run.complete_config, "data": run.about.get("data") or {}})


def _table(stored: Runs, flats: Mapping[str, Flat], keys: Sequence[str]) -> pl.DataFrame:
    runs = stored.every
    return pl.DataFrame(
        [
            pl.Series("run", [run.id for run in runs], dtype=pl.String),
            *(_column(key, [flats[run.id].get(key) for run in runs]) for key in _ALWAYS),
            pl.Series("state", [run.status.state for run in runs], dtype=pl.String),
            *(_column(key, [flats[run.id].get(key) for run in runs]) for key in keys),
        ]
    )


def with_columns_of_runs(rows: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """The rows in their order, with the columns of their run before what was measured."""
    joined = rows.join(runs, on="run", how="left", maintain_order="left")
    return joined.select(*runs.columns, *(name for name in rows.columns if name != "run"))


def _column(key: str, values: list[Any]) -> pl.Series:
    """As numbers, truths or text where all are; else each as `--only` would write it."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and all(abs(value) < _LARGEST for value in values if isinstance(value, int)):
        whole = pl.Int64 if kinds == {int} or key == "seed" else pl.Float64
        return pl.Series(key, values, dtype=whole if kinds else None)
    if kinds in ({bool}, {str}):
        return pl.Series(key, values)
    return pl.Series(key, [None if value is None else shown(value) for value in values], dtype=pl.String)


def untold(stored: Runs) -> dict[str, dict[str, str]]:
    """The keys in which runs of one label differ, with the value of each run: what the label does not tell.

    Seeds and epochs have columns of their own; of keys that say the same of every run the first is taken.
    """
    present = by_recipe(stored.runs)
    by_label: dict[str, list[dict[str, Any]]] = {}
    for recipe in present:
        by_label.setdefault(recipe.runs[0].label, []).append(recipe.flat)
    varying = {key for flats in by_label.values() for key in differing(flats)} - {"epochs", "scale"}
    found: dict[tuple[str, ...], str] = {}
    for key in sorted(varying, key=lambda key: (key.count("."), key)):
        values = [recipe.flat.get(key, "–") for recipe in present]
        if not any(isinstance(value, list) for value in values):
            order = {value: place for place, value in enumerate(dict.fromkeys(map(shown, values)))}
            found.setdefault(tuple(str(order[shown(value)]) for value in values), key)
    return {
        key: {run.id: shown(recipe.flat.get(key, "–")) for recipe in present for run in recipe.runs}
        for key in list(found.values())[:_MOST_KEYS]
    }


def last_metrics(stored: Runs) -> dict[str, dict[str, float]]:
    """By run: metric of the whole network → its last value, NaN where undefined."""
    trained = pl.col("run").is_in([run.id for run in stored.runs])
    scalars = stored.rows.filter(pl.col("layer").is_null() & trained)
    last = scalars.group_by("run", "metric", maintain_order=True).agg(pl.col("value").sort_by("epoch", "step").last())
    metrics: dict[str, dict[str, float]] = {run.id: {} for run in stored.runs}
    for run, metric, value in last.iter_rows():
        metrics[run][metric] = value
    return metrics


def last_value(value: float | None) -> str:
    """In four digits; a dash where it was never measured."""
    if value is None:
        return "–"
    return "undefined" if value != value else f"{value:.4g}"
