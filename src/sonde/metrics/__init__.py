"""Every metric that a stored row can hold, described once, and the probes that compute them.

`TRAINED` has the metrics of runs that Sonde trained, by name, `WATCHED` those of watched steps; `loss` is in both.  To
add a metric, add an object to `trained.py` or `watched.py`.  Names, labels, axes, scales and bounds stand nowhere else.
The table needs no torch; `reductions.py` has what is computed from tensors, `probes` what is measured of a snapshot.
"""

from collections.abc import Mapping

from sonde.metrics.metric import (
    CONTROLS,
    COSINE,
    NOT_NEGATIVE,
    NULL_STD,
    SHARE,
    UNLIMITED,
    Axis,
    Bounds,
    Metric,
    as_math,
    base_of,
    family_of,
    index_of,
)
from sonde.metrics.trained import TRAINED
from sonde.metrics.watched import NONFINITE, WATCHED

__all__ = [
    "ALIASES",
    "CONTROLS",
    "COSINE",
    "NONFINITE",
    "NOT_NEGATIVE",
    "NULL_STD",
    "SHARE",
    "TRAINED",
    "UNLIMITED",
    "WATCHED",
    "Axis",
    "Bounds",
    "Metric",
    "as_math",
    "base_of",
    "bounds_of",
    "family_of",
    "index_of",
    "label_of",
    "stored_name",
    "symbol_of",
]

ALIASES = {alias: metric.name for metric in (*WATCHED.values(), *TRAINED.values()) for alias in metric.aliases}
"""Other names of metrics → their names in stored rows."""


def stored_name(name: str) -> str:
    """The name in stored rows of a metric that may be asked for by an alias: `state_values[3]` is `state[3]`."""
    base = base_of(name)
    return ALIASES.get(base, base) + name.removeprefix(base)


def label_of(name: str, table: Mapping[str, Metric] = TRAINED) -> str:
    """The label of a stored name, with the index of a family: "loss change after a nudge, η = 0.01".

    The name of a metric that is not in the table is its label.
    """
    metric, index = table.get(base_of(name)), index_of(name)
    if metric is None:
        return name.replace("_", " ")
    if index is None:
        return metric.label
    return f"{metric.label}, {metric.index} = {index}" if len(metric.index) == 1 else f"{metric.label}, {index}"


def symbol_of(name: str) -> str:
    """The symbol of a stored name of a trained run, with the index of a family: "nudge, η = 0.01"."""
    metric, index = TRAINED[base_of(name)], index_of(name)
    return metric.symbol if index is None else f"{metric.symbol}, {metric.index} = {index}"


def bounds_of(name: str) -> Bounds:
    """Between which values a stored name of a trained run can lie."""
    metric = TRAINED.get(base_of(name))
    return UNLIMITED if metric is None else metric.bounds
