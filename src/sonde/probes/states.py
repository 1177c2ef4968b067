"""The signal on its way up: what reaches each state, and how much each block adds."""

import itertools
from collections.abc import Iterator

from sonde.probes.norms import median, sample_norms
from sonde.probes.snapshot import Snapshot
from sonde.rows import Reading, undefined


def hidden_norm(snapshot: Snapshot) -> Iterator[Reading]:
    """Median over samples of ‖h_l‖₂, layers 0 … L."""
    for layer, h_Nd in enumerate(snapshot.states):
        norm = median(sample_norms(h_Nd.detach()))
        yield Reading(metric="hidden_norm", layer=layer, value=norm, samples=snapshot.samples)


def growth(snapshot: Snapshot) -> Iterator[Reading]:
    """hidden_norm[l+1] / hidden_norm[l] of block l; undefined where the stream is zero."""
    norms = [median(sample_norms(h_Nd.detach())) for h_Nd in snapshot.states]
    for block, (before, after) in enumerate(itertools.pairwise(norms)):
        if before > 0:
            yield Reading(metric="growth", layer=block, value=after / before, samples=snapshot.samples)
        else:
            yield undefined(
                "growth", "the state before the block is zero", layer=block, samples=snapshot.samples
            )


def trace(snapshot: Snapshot) -> Iterator[Reading]:
    """Every unit of the first probe sample at every layer, as `state[unit]`."""
    for layer, h_Nd in enumerate(snapshot.states):
        for unit, value in enumerate(h_Nd[0].detach().flatten().tolist()):
            yield Reading(metric=f"state[{unit}]", layer=layer, value=value, samples=1)
