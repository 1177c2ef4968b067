"""The runs that train now: how far each is, the time left, and the curve of its loss."""

from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from sonde.core.formatting import percent
from sonde.metrics import TRAINED
from sonde.show.report.page import duration
from sonde.store.run import Run, Runs

MOST_POINTS = 200  # of a curve
_CURVES = ("train_loss", "loss", "test_loss")


def running_runs(stored: Runs) -> list[dict[str, Any]]:
    """The runs that train now, those that began last first: how far each is, the time left, and its loss."""
    trained = [_trained_now(run, stored.rows) for run in stored.runs if run.status.state == "running"]
    watched = [_watched_now(run, stored.rows) for run in stored.watched if run.status.state == "running"]
    return sorted([*trained, *watched], key=lambda one: one["began"], reverse=True)


def _trained_now(run: Run, rows: pl.DataFrame) -> dict[str, Any]:
    known = rows.filter(pl.col("run") == run.id, pl.col("layer").is_null())
    epoch = run.manifest.epoch or 0
    told = [f"epoch {epoch:,} of {run.epochs:,}", time_left(run)]
    accuracy = known.filter(pl.col("metric") == "test_acc", pl.col("defined")).sort("epoch")
    if not accuracy.is_empty():
        told.append(f"test accuracy {percent(100 * accuracy['value'][-1])}")
    metric = next((name for name in _CURVES if (known["metric"] == name).any()), None)
    return {
        "id": run.id,
        "label": f"{run.label} on {run.about['task_label']}, seed {run.seed}",
        "began": _began(run),
        "told": told,
        "done": epoch / max(1, run.epochs),
        "curve": metric and _curve(known.filter(pl.col("metric") == metric), "epoch", TRAINED[metric].label),
    }


def _watched_now(run: Run, rows: pl.DataFrame) -> dict[str, Any]:
    losses = rows.filter(pl.col("run") == run.id, pl.col("metric") == "loss")
    steps = max(rows.filter(pl.col("run") == run.id)["step"].to_list(), default=0)
    return {
        "id": run.id,
        "label": run.label,
        "began": _began(run),
        "told": [f"step {steps:,}", "a watched loop does not say how many steps follow"],
        "done": None,
        "curve": None if losses.is_empty() else _curve(losses, "step", "loss"),
    }


def _began(run: Run) -> str:
    return str((run.manifest.sessions or [{}])[-1].get("started", ""))


def time_left(run: Run) -> str:
    """The time until the last epoch, from the mean time of the epochs of this session."""
    session = (run.manifest.sessions or [{}])[-1]
    first = session.get("from_epoch")
    done = (run.manifest.epoch or 0) - (first or 0)
    try:
        began = datetime.fromisoformat(str(session.get("started"))).timestamp()
        measured = (Path(str(run.path)) / "manifest.json").stat().st_mtime
    except (OSError, ValueError):
        return "time left unknown"
    if done < 1 or measured <= began:
        return "time left known after the first epoch"
    return f"about {duration((measured - began) / done * (run.epochs - (run.manifest.epoch or 0)))} left"


def _curve(rows: pl.DataFrame, axis: str, label: str) -> dict[str, Any]:
    """The points of a curve, null where there is no number.  Of many points, evenly spaced ones and the last."""
    known = rows.sort(axis).select(axis, pl.when(pl.col("defined") & pl.col("value").is_finite()).then("value"))
    every = -(-known.height // MOST_POINTS)
    kept = known.filter((pl.int_range(pl.len()) % every == 0) | (pl.int_range(pl.len()) == pl.len() - 1))
    return {"axis": axis, "label": label, "x": kept[axis].to_list(), "y": kept["value"].round_sig_figs(5).to_list()}
