"""The value of one metric for each run, at one epoch and layer; undefined is a value, with its reason."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from sonde.errors import SondeError, nearest
from sonde.store.load import Run

Row = tuple[float, bool, str | None]
"""Value, whether it is defined, and why it is not."""


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
    at: dict[tuple[str, int], list[Row]] = {}
    for id, when, *row in found.select("run", "epoch", "value", "defined", "reason").iter_rows():
        at.setdefault((id, when), []).append(tuple(row))
    read = {}
    for run in runs:
        when = ends[run.id] if epoch is None else epoch
        read[run.id] = _value(at.get((run.id, when), []), run, metric, when)
    return read


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


def _value(here: Sequence[Row], run: Run, metric: str, epoch: int) -> Value:
    value = math.nan
    reason: str | None = f"{metric} was not measured at epoch {epoch}"
    if len(here) > 1:
        raise SondeError(
            f"{metric} has {len(here)} values in epoch {epoch}: choose a metric with one an epoch"
        )
    if len(here) == 1:
        ((stored, defined, why),) = here
        defined = defined and math.isfinite(stored)
        value = stored if defined else math.nan
        reason = None if defined else why or "no reason was recorded"
    return Value(run=run.id, seed=run.config["seed"], epoch=epoch, value=value, reason=reason)
