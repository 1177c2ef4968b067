"""Probes, chosen by name: each turns a snapshot into readings."""

from collections.abc import Callable, Iterator

from sonde.probes.credit import credit_cosine, credit_norm
from sonde.probes.drift import drift
from sonde.probes.gradients import cross_batch_cosine, grad_norm, loss, preact_grad_norm
from sonde.probes.nudge import nudge
from sonde.probes.rho import rho
from sonde.probes.schedule import Schedule, epochs_of
from sonde.probes.signal import (
    activation_mean,
    activation_std,
    branch_cosine,
    branch_ratio,
    growth,
    hidden_norm,
    trace,
)
from sonde.probes.snapshot import DRAWS, FEW_DRAWS, Context, Redrawn, Snapshot, take
from sonde.probes.weights import weight_alignment
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
    "weight_alignment": weight_alignment,
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
