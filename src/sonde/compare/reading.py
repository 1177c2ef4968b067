"""The value of one metric for each run, at one epoch and layer; undefined is a value, with its reason."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from sonde.errors import SondeError, nearest
from sonde.store.load import Run


@dataclass(frozen=True, kw_only=True)
class Value:
    """What a run measured: NaN where undefined, and why."""

    run: str
    seed: int
    epoch: int
    value: float
    reason: str | None


def values(
    rows: pl.DataFrame, runs: Sequence[Run], *, metric: str, layer: int | None, epoch: int | None
) -> dict[str, Value]:
    """Run id → value at the epoch, or at the run's last."""
    rows = rows.filter(pl.col("run").is_in([run.id for run in runs]))
    found = rows.filter(metric=metric)
    if found.is_empty():
        raise SondeError(f"--metric {metric}: no run has it: {nearest(metric, rows['metric'].unique())}")
    found = _of_layer(found, metric, layer)
    ends = {run.id: _last_epoch(run) for run in runs}
    if epoch is not None and not all(0 <= epoch <= end for end in ends.values()):
        raise SondeError(
            f"--epoch {epoch}: a run ends at epoch {min(ends.values())}; choose one from 0 to {min(ends.values())}"
        )
    return {run.id: _value(found, run, metric, ends[run.id] if epoch is None else epoch) for run in runs}


def _last_epoch(run: Run) -> int:
    return run.config["epochs"] if run.manifest.epoch is None else run.manifest.epoch


def _of_layer(found: pl.DataFrame, metric: str, layer: int | None) -> pl.DataFrame:
    layers = sorted(found["layer"].drop_nulls().unique())
    if layer is None:
        if layers:
            raise SondeError(
                f"{metric} is measured at every layer: choose one with --layer, {layers[0]} … {layers[-1]}"
            )
        return found
    if not layers:
        raise SondeError(f"{metric} is measured of the whole network: leave out --layer")
    if layer not in layers:
        raise SondeError(f"--layer {layer}: {metric} has the layers {', '.join(map(str, layers))}")
    return found.filter(layer=layer)


def _value(found: pl.DataFrame, run: Run, metric: str, epoch: int) -> Value:
    here = found.filter(run=run.id, epoch=epoch)
    value = math.nan
    reason: str | None = f"{metric} was not measured at epoch {epoch}"
    if len(here) > 1:
        raise SondeError(
            f"{metric} has {len(here)} values in epoch {epoch}: choose a metric with one an epoch"
        )
    if len(here) == 1:
        row = here.row(0, named=True)
        defined = row["defined"] and math.isfinite(row["value"])
        value = row["value"] if defined else math.nan
        reason = None if defined else row["reason"] or "no reason was recorded"
    return Value(run=run.id, seed=run.config["seed"], epoch=epoch, value=value, reason=reason)
