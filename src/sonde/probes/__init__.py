"""Probes, chosen by name: each turns a snapshot into readings."""

from collections.abc import Callable, Iterator

from sonde.probes.activations import activation_mean, activation_std
from sonde.probes.branches import branch_cosine, branch_ratio
from sonde.probes.credit import credit_cosine, credit_norm
from sonde.probes.cross_batch import cross_batch_cosine
from sonde.probes.drift import drift
from sonde.probes.gradients import grad_norm, loss, preact_grad_norm
from sonde.probes.nudge import nudge
from sonde.probes.rho import rho
from sonde.probes.schedule import Schedule, epochs_of
from sonde.probes.snapshot import DRAWS, FEW_DRAWS, Context, Redrawn, Snapshot, take
from sonde.probes.states import growth, hidden_norm, trace
from sonde.rows import Reading

Probe = Callable[[Snapshot], Iterator[Reading]]

PROBES: dict[str, Probe] = {
    "loss": loss,
    "hidden_norm": hidden_norm,
    "growth": growth,
    "branch_ratio": branch_ratio,
    "branch_cosine": branch_cosine,
    "grad_norm": grad_norm,
    "credit_norm": credit_norm,
    "credit_cosine": credit_cosine,
    "rho": rho,
    "nudge": nudge,
    "cross_batch_cosine": cross_batch_cosine,
    "drift": drift,
    "activation_mean": activation_mean,
    "activation_std": activation_std,
    "preact_grad_norm": preact_grad_norm,
    "trace": trace,
}

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
