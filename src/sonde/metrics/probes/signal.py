"""The signal on its way up: what reaches each state, what each block adds to it, its linear outputs.  N samples."""

import itertools
import math
from collections.abc import Iterator

import torch

from sonde.metrics.probes.snapshot import Snapshot
from sonde.metrics.reductions import cosines, median_of_all, median_of_defined, sample_norms
from sonde.metrics.rows import Reading, undefined


def hidden_norm(snapshot: Snapshot) -> Iterator[Reading]:
    """Median over samples of ‖h_l‖₂, layers 0 … L."""
    for layer, h in enumerate(snapshot.states):
        yield median_of_all("hidden_norm", sample_norms(snapshot.pooling.read(h)), layer)


def growth(snapshot: Snapshot) -> Iterator[Reading]:
    """hidden_norm[l+1] / hidden_norm[l] of block l; undefined where the stream is zero."""
    norms = [reading.value for reading in hidden_norm(snapshot)]
    for block, (before, after) in enumerate(itertools.pairwise(norms)):
        if before > 0:
            yield Reading(metric="growth", layer=block, value=after / before, samples=snapshot.samples)
        else:
            reason = "the state before the block is " + ("not finite" if math.isnan(before) else "zero")
            yield undefined("growth", reason, layer=block, samples=snapshot.samples)


def trace(snapshot: Snapshot) -> Iterator[Reading]:
    """Every unit of the first probe sample at every layer: `state[unit]` = h_l[unit], l = 0 … L."""
    for layer, h in enumerate(snapshot.states):
        for unit, value in enumerate(h[0].flatten().tolist()):
            yield Reading(metric=f"state[{unit}]", layer=layer, value=value, samples=1)


def branch_ratio(snapshot: Snapshot) -> Iterator[Reading]:
    """Median over samples of ‖f_l‖/‖h_l‖, by block: a branch that adds nothing has ratio 0."""
    if not snapshot.net.residual:
        yield from _no_branches("branch_ratio", snapshot)
        return
    for block, f in enumerate(snapshot.branches):
        read = snapshot.pooling.read
        added_N, stream_N = sample_norms(read(f)), sample_norms(read(snapshot.states[block]))
        defined_N = added_N.isfinite() & stream_N.isfinite() & (stream_N > 0)
        ratios_N = torch.where(defined_N, added_N / stream_N, torch.nan)
        yield median_of_defined(
            "branch_ratio", ratios_N, block, "the state before the block is zero, or one of them not finite"
        )


def branch_cosine(snapshot: Snapshot) -> Iterator[Reading]:
    """Median over samples of cos(f_l, h_l), by block: a branch that only scales the stream has cosine 1."""
    if not snapshot.net.residual:
        yield from _no_branches("branch_cosine", snapshot)
        return
    for block, f in enumerate(snapshot.branches):
        yield median_of_defined(
            "branch_cosine",
            cosines(snapshot.pooling.read(f), snapshot.pooling.read(snapshot.states[block])),
            block,
            "branch or state is zero or not finite in every sample",
        )


def _no_branches(metric: str, snapshot: Snapshot) -> Iterator[Reading]:
    for block in range(snapshot.depth):
        yield undefined(metric, "the blocks are not residual", layer=block)


NO_LINEAR = "the block runs no linear map and no convolution"


def activation_mean(snapshot: Snapshot) -> Iterator[Reading]:
    """Mean of the linear output z_l = W h_{l−1} + b, layers 1 … L: m = Σ z/(N d) over samples and units."""
    for layer, z in enumerate(snapshot.preactivations, start=1):
        if z is None:
            yield undefined("activation_mean", NO_LINEAR, layer=layer)
        else:
            yield Reading(metric="activation_mean", layer=layer, value=z.mean().item(), samples=snapshot.samples)


def activation_std(snapshot: Snapshot) -> Iterator[Reading]:
    """Sample standard deviation of the linear output z_l, layers 1 … L: √(Σ (z − m)²/(N d − 1)), m its mean."""
    for layer, z in enumerate(snapshot.preactivations, start=1):
        if z is None:
            yield undefined("activation_std", NO_LINEAR, layer=layer)
        elif z.numel() < 2:
            yield undefined("activation_std", "one value has no spread", layer=layer, samples=snapshot.samples)
        else:
            yield Reading(metric="activation_std", layer=layer, value=z.std().item(), samples=snapshot.samples)
