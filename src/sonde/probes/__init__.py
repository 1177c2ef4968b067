"""Probes, chosen by name: each turns a snapshot into readings."""

from collections.abc import Callable, Iterator

from sonde.probes.activations import activation_mean, activation_std
from sonde.probes.gradients import grad_norm, loss, preact_grad_norm
from sonde.probes.snapshot import Snapshot, take
from sonde.probes.states import growth, hidden_norm, trace
from sonde.rows import Reading

Probe = Callable[[Snapshot], Iterator[Reading]]

PROBES: dict[str, Probe] = {
    "loss": loss,
    "hidden_norm": hidden_norm,
    "growth": growth,
    "grad_norm": grad_norm,
    "activation_mean": activation_mean,
    "activation_std": activation_std,
    "preact_grad_norm": preact_grad_norm,
    "trace": trace,
}

__all__ = ["PROBES", "Probe", "Snapshot", "take"]
