"""A metric, a reading of it, and its tidy row: one measurement, with its number of samples or why it is undefined.

A stored row has the name of a metric (`credit_cosine`), of a member of a family (`nudge[0.01]`), of a control
(`rho/null`), or of a control of a member (`nudge[0.01]/bp`).
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

import polars as pl

Axis = Literal["network", "layer", "block", "module", "parameter"]
"""What a metric is measured of: the whole network, every state, every block; or every module or parameter tensor."""

Bounds = tuple[float, float]
UNLIMITED: Bounds = (-math.inf, math.inf)
NOT_NEGATIVE: Bounds = (0.0, math.inf)
SHARE: Bounds = (0.0, 1.0)
COSINE: Bounds = (-1.0, 1.0)

CONTROLS = {"bp": "ceiling (BP gradient)", "null": "null (chance)"}
"""Measured beside a metric in the same snapshot, as `metric/control`, with their labels."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """The description of a metric, which every chart, figure, text and page uses."""

    name: str  # in stored rows; of a family, up to the bracket
    aliases: tuple[str, ...] = ()  # other names by which a reader can ask for it
    label: str  # on axes and in lists
    axis: Axis
    scale: Literal["log", "linear"] = "linear"
    bounds: Bounds = UNLIMITED  # between which its values can lie
    direction: Literal["higher", "lower", "neither"] = "neither"  # which values are better
    symbol: str = ""  # in formulas, tables and sentences
    indexed: str = ""  # the symbol at one layer l
    spellings: tuple[str, ...] = ()  # as pages write it, where they explain it in a tooltip
    definition: str  # in a sentence
    measured: str = ""  # how; of a probe's own metric the docstring of the probe says it
    good: str  # typical values of a healthy run
    bad: str  # and of one with a fault
    reference: str = ""
    probe: str = ""  # which probe measures it
    index: str = ""  # of a family like drift[…]: what the bracket holds

    @property
    def log(self) -> bool:
        """Whether it is drawn on a log scale."""
        return self.scale == "log"

    def at(self, layer: str) -> str:
        """The symbol at a layer: ‖h_L‖."""
        return self.indexed.format(l=layer)


def by_name(*metrics: Metric) -> dict[str, Metric]:
    """A table of metrics."""
    return {metric.name: metric for metric in metrics}


def as_math(symbol: str) -> str:
    """A symbol as matplotlib draws mathematics."""
    return f"${symbol.replace('‖', chr(92) + '|')}$"


def family_of(name: str) -> str:
    """The name up to the bracket: all `drift[…]` are one family."""
    return name.partition("[")[0]


def base_of(name: str) -> str:
    """The metric behind a name: without index and without control."""
    return family_of(name).partition("/")[0]


def index_of(name: str) -> str | None:
    """What the bracket holds; None where there is none."""
    _, bracket, rest = name.partition("[")
    return rest.rpartition("]")[0] if bracket else None


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
