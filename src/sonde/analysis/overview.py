"""Stored runs at a glance: what tells them apart, and the last value of each metric."""

from typing import Any

import polars as pl

from sonde.analysis.configurations import kinds
from sonde.core.run_ids import differing, shown
from sonde.store.stored import Runs

SHOWN = ("test_acc", "test_loss", "train_loss")  # of the metrics, those that say most
MOST_KEYS = 3  # in a table, of those in which runs differ


def untold(stored: Runs) -> dict[str, dict[str, str]]:
    """The keys in which runs of one label differ, with the value of each run: what the label does not tell.

    Seeds and epochs have columns of their own; of keys that say the same of every run the first is taken.
    """
    present = kinds(stored.runs)
    by_label: dict[str, list[dict[str, Any]]] = {}
    for kind in present:
        by_label.setdefault(kind.runs[0].label, []).append(kind.flat)
    varying = {key for flats in by_label.values() for key in differing(flats)} - {"epochs", "scale"}
    found: dict[tuple[str, ...], str] = {}
    for key in sorted(varying, key=lambda key: (key.count("."), key)):
        values = [kind.flat.get(key, "–") for kind in present]
        if not any(isinstance(value, list) for value in values):
            order = {value: place for place, value in enumerate(dict.fromkeys(map(shown, values)))}
            found.setdefault(tuple(str(order[shown(value)]) for value in values), key)
    return {
        key: {run.id: shown(kind.flat.get(key, "–")) for kind in present for run in kind.runs}
        for key in list(found.values())[:MOST_KEYS]
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
