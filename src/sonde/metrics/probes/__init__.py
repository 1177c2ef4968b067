"""Probes, chosen by name: each turns a snapshot into readings."""

from collections.abc import Callable, Iterator

from sonde.metrics import TRAINED
from sonde.metrics.probes import credit, drift, gradients, nudge, rho, signal, weights
from sonde.metrics.probes.schedule import Schedule, epochs_of
from sonde.metrics.probes.snapshot import DRAWS, FEW_DRAWS, Context, Redrawn, Snapshot, take
from sonde.metrics.rows import Reading

Probe = Callable[[Snapshot], Iterator[Reading]]

_MODULES = (gradients, signal, credit, rho, nudge, drift, weights)
_FUNCTIONS = {name: thing for module in _MODULES for name, thing in vars(module).items() if callable(thing)}

PROBES: dict[str, Probe] = {metric.probe: _FUNCTIONS[metric.probe] for metric in TRAINED.values() if metric.probe}
"""The probes that the table of metrics names: each is the function of that name in one of the files of this package."""

__all__ = [
    "DRAWS",
    "FEW_DRAWS",
    "PROBES",
    "Context",
    "Probe",
    "Redrawn",
    "Schedule",
    "Snapshot",
    "epochs_of",
    "take",
]
