"""The exact gradient on its way back, and the loss it comes from."""

from collections.abc import Iterator

import torch

from sonde.probes.activations import NO_LINEAR
from sonde.probes.norms import rms, sample_norms
from sonde.probes.snapshot import Snapshot
from sonde.probes.summaries import median_of_all, median_of_defined
from sonde.rows import Reading, undefined


def loss(snapshot: Snapshot) -> Iterator[Reading]:
    """Mean loss of the probe batch."""
    yield Reading(metric="loss", value=snapshot.losses_N.mean().item(), samples=snapshot.samples)


def grad_norm(snapshot: Snapshot) -> Iterator[Reading]:
    """Median over samples of ‖g_l‖₂, layers 0 … L, per sample (the loss is not divided by N).

    Beside it, at layer L, `grad_per_error`: the median of ‖g_L‖/‖e‖, e the output error.  A network that has learned
    has a small g_L because e is small; per error it is small only where the way back is closed.  Samples without an
    error do not count.
    """
    for layer, (g, unread) in enumerate(zip(snapshot.gradients, snapshot.unread, strict=True)):
        if unread:
            yield undefined("grad_norm", unread, layer=layer)
        else:
            yield median_of_all("grad_norm", sample_norms(snapshot.reader.credit(g)), layer)
    yield _grad_per_error(snapshot)


def _grad_per_error(snapshot: Snapshot) -> Reading:
    metric, top = "grad_per_error", snapshot.depth
    if unread := snapshot.unread[top]:
        return undefined(metric, unread, layer=top)
    top_N = sample_norms(snapshot.reader.credit(snapshot.gradients[top]))
    error_N = sample_norms(snapshot.loss.error(snapshot.output_NC, snapshot.y).flatten(1))
    defined_N = top_N.isfinite() & error_N.isfinite() & (error_N > 0)
    return median_of_defined(
        metric,
        torch.where(defined_N, top_N / error_N, torch.nan),
        top,
        "the output error is zero, or it or the gradient is not finite, in every sample",
    )


def preact_grad_norm(snapshot: Snapshot) -> Iterator[Reading]:
    """‖∂(mean loss)/∂(linear output)‖₂ over the whole batch, layers 1 … L."""
    for layer, g in enumerate(snapshot.preactivation_gradients, start=1):
        if g is None:
            yield undefined("preact_grad_norm", NO_LINEAR, layer=layer)
            continue
        norm = rms(g) * g.numel() ** 0.5 / snapshot.samples
        yield Reading(metric="preact_grad_norm", layer=layer, value=norm, samples=snapshot.samples)
