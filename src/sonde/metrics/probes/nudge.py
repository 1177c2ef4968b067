"""Does a small step against the credit lower the loss?  N samples, E step sizes."""

from collections.abc import Iterator

import torch
from torch import Tensor

from sonde.metrics.probes.credit import NO_RULE
from sonde.metrics.probes.null import random_vectors
from sonde.metrics.probes.over_samples import rms
from sonde.metrics.probes.snapshot import Snapshot
from sonde.metrics.probes.tails import changes, resolution, unresolved
from sonde.metrics.rows import Reading, undefined


def nudge(snapshot: Snapshot) -> Iterator[Reading]:
    """Mean change of loss after h_l ← h_l − η·â_l, as `nudge[η]`; beside it BP's gradient `/bp` and, as `/null`, one
    random vector a sample, whatever the rule draws.

    â = a/(RMS(a) + 1e-6), RMS over the whole tensor, as training normalises credit: a credit far below 1e-6 moves
    the state by less than η.
    """
    candidates = {**snapshot.candidates, "/null": random_vectors(snapshot, snapshot.rng("null"))}
    for layer in range(snapshot.depth + 1):
        resolution_N = resolution(snapshot, layer)
        # Under bp the rule's credit is the gradient: one measurement serves both.
        measured: dict[int, Tensor | str] = {id(None): NO_RULE}
        for ending, credits in candidates.items():
            a = None if credits is None else credits[layer]
            if a is not None and id(a) not in measured:
                measured[id(a)] = _changes(snapshot, layer, a)
            found = measured[id(a)]
            for index, eta in enumerate(snapshot.context.etas):
                metric = f"nudge[{eta:g}]{ending}"
                if isinstance(found, str):
                    yield undefined(metric, found, layer=layer)
                else:
                    yield _mean(metric, layer, found[index], resolution_N)


def _changes(snapshot: Snapshot, layer: int, a: Tensor) -> Tensor | str:
    """The change of every sample's loss at every η, E×N, or why there is none."""
    size = rms(a)
    if not 0 < size < float("inf"):
        return "the credit is zero" if size == 0 else "the credit is not finite"
    h, unit = snapshot.states[layer], a / (size + 1e-6)
    return changes(snapshot, layer, torch.stack([h - eta * unit for eta in snapshot.context.etas]))


def _mean(metric: str, layer: int, changes_N: Tensor, resolution_N: Tensor) -> Reading:
    finite, n = int(changes_N.isfinite().sum()), len(changes_N)
    if finite < n:
        reason = f"the change of loss is not finite in {n - finite} of {n} samples"
        return undefined(metric, reason, layer=layer, samples=finite)
    mean = changes_N.mean().item()
    too_small = unresolved(abs(mean), resolution_N)
    if too_small:
        return undefined(metric, too_small, layer=layer, samples=n)
    return Reading(metric=metric, layer=layer, value=mean, samples=n)
