"""The exact gradient on its way back, and the loss it comes from."""

from collections.abc import Iterator

import torch

from sonde.probes.norms import median, sample_norms
from sonde.probes.snapshot import Snapshot
from sonde.rows import Reading


def loss(snapshot: Snapshot) -> Iterator[Reading]:
    """Mean loss of the probe batch."""
    yield Reading(metric="loss", value=snapshot.losses_N.mean().item(), samples=snapshot.samples)


def grad_norm(snapshot: Snapshot) -> Iterator[Reading]:
    """Median over samples of ‖g_l‖₂, layers 0 … L, per sample (the loss is not divided by N)."""
    for layer, g_Nd in enumerate(snapshot.gradients):
        norm = median(sample_norms(g_Nd))
        yield Reading(metric="grad_norm", layer=layer, value=norm, samples=snapshot.samples)


def preact_grad_norm(snapshot: Snapshot) -> Iterator[Reading]:
    """‖∂(mean loss)/∂(linear output)‖₂ over the whole batch, layers 1 … L."""
    for layer, g in enumerate(snapshot.preactivation_gradients, start=1):
        norm = torch.linalg.vector_norm(g).item() / snapshot.samples
        yield Reading(metric="preact_grad_norm", layer=layer, value=norm, samples=snapshot.samples)
