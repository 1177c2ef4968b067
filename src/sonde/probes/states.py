"""The signal on its way up: what reaches each state."""

import itertools
import math
from collections.abc import Iterator

from sonde.probes.norms import sample_norms
from sonde.probes.snapshot import Snapshot
from sonde.probes.summaries import median_of_all
from sonde.rows import Reading, undefined


def hidden_norm(snapshot: Snapshot) -> Iterator[Reading]:
    """Median over samples of ‖h_l‖₂, layers 0 … L."""
    for layer, h in enumerate(snapshot.states):
        yield median_of_all("hidden_norm", sample_norms(snapshot.reader.read(h)), layer)


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
    """Every unit of the first probe sample at every layer, as `state[unit]`."""
    for layer, h in enumerate(snapshot.states):
        for unit, value in enumerate(h[0].flatten().tolist()):
            yield Reading(metric=f"state[{unit}]", layer=layer, value=value, samples=1)
