"""The rest of the network from a state onward, and how small a change of loss it can resolve.

N samples, M moved copies of a state.
"""

import torch
from torch import Tensor

from sonde.metrics.probes.over_samples import rms
from sonde.metrics.probes.snapshot import Snapshot
from sonde.network import tiled, vector_axis

ROWS = 1024  # vectors that pass through the tail together: their states stay in the cache
MARGIN = 10  # changes this many times larger than their rounding error lose half a percent of a correlation


def copies_a_pass(h: Tensor) -> int:
    """How many copies of a state pass through the tail together."""
    return max(1, ROWS // h.select(vector_axis(h), 0).numel())


@torch.no_grad()
def changes(snapshot: Snapshot, layer: int, moved: Tensor) -> Tensor:
    """ℓ(moved h_l) − ℓ(h_l) of every sample, M×N, for M copies of a moved state, M×(its shape)."""
    net, y = snapshot.net, snapshot.y
    parts = []
    for copies in torch.split(moved, copies_a_pass(moved[0])):
        output = net.tail(copies.flatten(0, 1), layer, snapshot.x).output
        losses = snapshot.loss.per_sample(output, tiled(y, len(copies)))
        parts.append(losses.view(len(copies), -1) - snapshot.losses_N)
    return torch.cat(parts)


def resolution(snapshot: Snapshot, layer: int) -> Tensor:
    """By how much rounding may change each sample's loss: a bound to first order, plus a measurement.

    eps · (ℓ + Σ|e||z| + Σ_{k ≥ l} Σ|g_k||h_k|): states and output are rounded once each.  A cross-entropy is the
    logarithm of a sum of at least 1, and so resolves no less than eps.  Where a block or the readout cancels large
    numbers the gradient itself may be rounding; so every entry of h_l is also moved by its last bit, up or down.
    """
    if layer not in snapshot.resolutions:
        snapshot.resolutions[layer] = _resolution(snapshot, layer)
    return snapshot.resolutions[layer]


def _resolution(snapshot: Snapshot, layer: int) -> Tensor:
    h = snapshot.states[layer]
    signs = torch.randint(2, h.shape, generator=snapshot.rng(f"last bit/{layer}")).to(h) * 2 - 1
    eps = torch.finfo(h.dtype).eps
    measured_N = changes(snapshot, layer, (h + h * (eps * signs))[None])[0].abs()
    size_N = snapshot.losses_N.abs().clamp_min(snapshot.loss.floor)
    error_NC = snapshot.loss.error(snapshot.output_NC, snapshot.y)
    pairs = [(error_NC, snapshot.output_NC)]
    pairs += zip(snapshot.gradients[layer:], snapshot.states[layer:], strict=True)
    for slope, value in pairs:
        size_N = size_N + (slope * value).abs().flatten(1).sum(-1)
    return eps * size_N + measured_N


def unresolved(change: float, resolution_N: Tensor) -> str | None:
    """Why changes of this size say nothing, or None if they do."""
    least = MARGIN * rms(resolution_N)
    if change > least:
        return None
    return f"a loss change of {change:.1e} is below what float64 resolves here, {least:.1e}"
