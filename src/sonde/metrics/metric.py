"""One metric: its name, where it is measured, how it is drawn, and what its values mean.

A stored row has the name of a metric (`credit_cosine`), of a member of a family (`nudge[0.01]`), of a control
(`rho/null`), or of a control of a member (`nudge[0.01]/bp`).
"""

import math
from dataclasses import dataclass
from typing import Literal

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
