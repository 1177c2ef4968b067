"""The exact gradient on its way back, and the loss it comes from."""

from collections.abc import Iterator

from sonde.probes.activations import NO_LINEAR
from sonde.probes.norms import rms, sample_norms
from sonde.probes.snapshot import Snapshot
from sonde.probes.summaries import median_of_all
from sonde.rows import Reading, undefined


def loss(snapshot: Snapshot) -> Iterator[Reading]:
    """Mean loss of the probe batch."""
    yield Reading(metric="loss", value=snapshot.losses_N.mean().item(), samples=snapshot.samples)


def grad_norm(snapshot: Snapshot) -> Iterator[Reading]:
    """Median over samples of ‖g_l‖₂, layers 0 … L, per sample (the loss is not divided by N)."""
    for layer, (g, unread) in enumerate(zip(snapshot.gradients, snapshot.unread, strict=True)):
        if unread:
            yield undefined("grad_norm", unread, layer=layer)
        else:
            yield median_of_all("grad_norm", sample_norms(snapshot.reader.credit(g)), layer)


def preact_grad_norm(snapshot: Snapshot) -> Iterator[Reading]:
    """‖∂(mean loss)/∂(linear output)‖₂ over the whole batch, layers 1 … L."""
    for layer, g in enumerate(snapshot.preactivation_gradients, start=1):
        if g is None:
            yield undefined("preact_grad_norm", NO_LINEAR, layer=layer)
            continue
        norm = rms(g) * g.numel() ** 0.5 / snapshot.samples
        yield Reading(metric="preact_grad_norm", layer=layer, value=norm, samples=snapshot.samples)
