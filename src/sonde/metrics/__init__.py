"""Every metric that a stored row can hold, described once, and the probes that compute them.

One object per metric has its name, label, symbol, axis (layer, block, module, parameter or network), scale, bounds,
direction, definition, and what good and bad values look like.  `TRAINED` has the metrics of runs that Sonde trained,
`WATCHED` those of watched steps; `loss` is in both.  Families (`drift[…]`) are described once.  Charts, figures,
explanations, exports and the documentation read these tables; labels, scales and bounds stand nowhere else.  The
tables need no torch.

A reading is a number with its n, or the reason why it is undefined.  Undefined is a value: it is stored with its
reason and drawn as a gap.  A row is one reading of one metric at one layer and epoch of one run.

A probe is a function from a snapshot to readings.  A snapshot is one pass of a float64 copy of the network on the
first test samples, with the credit that the rule assigns there; all probes that are due share it.  Next to a credit
probe its ceiling (`…/bp`: the BP gradient as the credit) and its null (`…/null`, `…/null_std`) are measured in the same
snapshot.  The null draws the rule's random state again: 20 times where ρ is measured, 4 times for a cosine alone.  A
rule without state gets random vectors; a rule whose credit is good whatever it draws names another rule for this.

To add a metric: its probe, and its object in the table.
"""

from collections.abc import Mapping

from sonde.metrics.metric import CONTROLS as CONTROLS
from sonde.metrics.metric import NOT_NEGATIVE as NOT_NEGATIVE
from sonde.metrics.metric import SHARE as SHARE
from sonde.metrics.metric import UNLIMITED as UNLIMITED
from sonde.metrics.metric import Bounds as Bounds
from sonde.metrics.metric import Metric as Metric
from sonde.metrics.metric import as_math as as_math
from sonde.metrics.metric import base_of as base_of
from sonde.metrics.metric import family_of as family_of
from sonde.metrics.metric import index_of as index_of
from sonde.metrics.trained import TRAINED as TRAINED
from sonde.metrics.watched import NONFINITE as NONFINITE
from sonde.metrics.watched import WATCHED as WATCHED

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
