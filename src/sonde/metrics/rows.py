"""Readings and tidy rows: one measurement each, with its number of samples, or the reason why it is undefined."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import polars as pl

SCHEMA = pl.Schema(
    {
        "run": pl.String,
        "epoch": pl.Int64,  # 0 is the initialisation
        "step": pl.Int64,  # optimiser steps taken when it was measured; of batch_loss the one it drives, from 1
        "layer": pl.Int64,  # null for a measurement of the whole network
        "metric": pl.String,
        "value": pl.Float64,  # NaN where undefined
        "defined": pl.Boolean,
        "reason": pl.String,  # why it is undefined; null where it is defined
        "samples": pl.Int64,  # how many samples the value was computed from
    }
)

WATCHED = pl.Schema([*SCHEMA.items(), ("module", pl.String)])
"""Rows of a watched run.  The module (or parameter) has a name, `layer` is its place in the order of execution, and
there are no epochs: `epoch` is null."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a probe found: a number and its n, or the reason why there is none."""

    metric: str
    value: float
    samples: int
    layer: int | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) and self.reason is None:
            reason = "overflow: the value is infinite" if math.isinf(self.value) else "not a number"
            object.__setattr__(self, "reason", reason)
        if self.reason is not None:
            object.__setattr__(self, "value", math.nan)

    @property
    def defined(self) -> bool:
        """Whether there is a number: a reading without one has its reason."""
        return self.reason is None


def undefined(metric: str, reason: str, *, layer: int | None = None, samples: int = 0) -> Reading:
    """A measurement that has no value here, and why."""
    return Reading(metric=metric, value=math.nan, samples=samples, layer=layer, reason=reason)


def rows_of(run: str, epoch: int, readings: Iterable[Reading], *, steps: Iterable[int]) -> pl.DataFrame:
    """Readings of one run as tidy rows, each with its step."""
    return pl.DataFrame(
        [
            (run, epoch, step, r.layer, r.metric, r.value, r.defined, r.reason, r.samples)
            for step, r in zip(steps, readings, strict=False)
        ],
        schema=SCHEMA,
        orient="row",
    )


def empty() -> pl.DataFrame:
    """A table of tidy rows without rows."""
    return pl.DataFrame(schema=SCHEMA)


def named(metrics: Collection[str]) -> pl.Expr:
    """Whether a row is of one of these metrics; a name that ends in `[` stands for its family."""
    families = [name for name in metrics if name.endswith("[")]
    return pl.any_horizontal(
        pl.col("metric").is_in([name for name in metrics if name not in families]),
        *(pl.col("metric").str.starts_with(family) for family in families),
    )
