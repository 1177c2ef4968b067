"""Probes, chosen by name: each turns a snapshot into readings."""

from collections.abc import Callable, Iterator
from typing import Literal, assert_never

from sonde.metrics import TRAINED
from sonde.metrics.probes import credit, signal
from sonde.metrics.probes.signal import DRAWS, FEW_DRAWS, Context, Redrawn, Snapshot, take
from sonde.metrics.rows import Reading

Schedule = Literal["every_epoch", "every_k", "log_spaced", "final"]
"""At which epochs probes measure."""

Probe = Callable[[Snapshot], Iterator[Reading]]

_MODULES = (signal, credit)
_FUNCTIONS = {name: thing for module in _MODULES for name, thing in vars(module).items() if callable(thing)}

PROBES: dict[str, Probe] = {metric.probe: _FUNCTIONS[metric.probe] for metric in TRAINED.values() if metric.probe}
"""The probes that the table of metrics names: each is the function of that name in one of the files of this package."""

__all__ = ["DRAWS", "FEW_DRAWS", "PROBES", "Context", "Probe", "Redrawn", "Schedule", "Snapshot", "epochs_of", "take"]


def epochs_of(schedule: Schedule, k: int, epochs: int) -> set[int]:
    """The epochs of a run at which probes measure; 0 is the initialisation.

    `every_k` takes the multiples of k, `log_spaced` the powers of k; both also the first and the last epoch, 0 and
    `epochs`.  `final` takes the last alone.
    """
    match schedule:
        case "every_epoch":
            return set(range(epochs + 1))
        case "every_k":
            return {*range(0, epochs + 1, k), epochs}
        case "log_spaced":
            powers = {k**n for n in range(epochs.bit_length()) if k**n <= epochs}
            return {0, *powers, epochs}
        case "final":
            return {epochs}
        case _:
            assert_never(schedule)
