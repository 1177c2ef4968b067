"""What chance scores in credit's place, drawn as the rule draws.  J draws, N samples, d width.

A rule that owns matrices or networks uses the same ones for every sample, so its credit scatters around chance more
than a random vector a sample does.  Each draw is therefore a fresh state of the rule, on the same network and at the
same step of training; for a rule that owns nothing it is a random vector a sample.  Draw k of an epoch comes from the
generator `probe/null/epoch/k`.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sonde.core.generators import generator
from sonde.core.seed_statistics import summarise
from sonde.metrics.probes.snapshot import Snapshot
from sonde.metrics.rows import Reading, undefined


def draws(snapshot: Snapshot) -> Iterator[list[Tensor]]:
    """a_0 … a_L of one draw after the other: the vector that is read of each sample, N×d, as it was drawn."""
    context, reader = snapshot.context, snapshot.reader
    for k in range(context.draws):
        rng = generator(context.seed, f"probe/null/{context.epoch}/{k}")
        if context.redrawn is None:
            widths = [reader.width(tuple(h.shape[1:])) for h in snapshot.states]
            drawn = [torch.randn(snapshot.samples, d, generator=rng) for d in widths]
            yield [v_Nd.to(snapshot.losses_N.device) for v_Nd in drawn]
        else:
            yield [reader.credit(a.detach()) for a in context.redrawn(snapshot, rng)]


def random_vectors(snapshot: Snapshot, rng: torch.Generator) -> list[Tensor]:
    """A random normal entry for every entry of every state."""
    return [torch.randn(h.shape, generator=rng).to(h) for h in snapshot.states]


def over_draws(metric: str, found: Sequence[Reading], layer: int, unread: str | None = None) -> Iterator[Reading]:
    """`/null`: the mean over draws, of as many samples as the least of them; `/null_std`: their sample standard
    deviation, whose `samples` counts the draws.
    """
    known = [reading for reading in found if reading.defined and not unread]
    if not known:
        why = unread or next((reading.reason for reading in found if reading.reason), "nothing was drawn")
        yield undefined(f"{metric}/null", why, layer=layer)
        yield undefined(f"{metric}/null_std", why, layer=layer)
        return
    over, samples = summarise(reading.value for reading in known), min(reading.samples for reading in known)
    yield Reading(metric=f"{metric}/null", layer=layer, value=over.mean, samples=samples)
    if over.n < 2:
        why = f"one of {len(found)} draws has a value: one value has no spread"
        yield undefined(f"{metric}/null_std", why, layer=layer, samples=1)
    else:
        yield Reading(metric=f"{metric}/null_std", layer=layer, value=over.std, samples=over.n)
