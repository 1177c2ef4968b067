"""Agreement of a rule's credit with the backpropagated gradient, and the null: what chance scores in its place.

N samples, d width.  A rule that owns matrices or networks uses the same ones for every sample, so its credit scatters
around chance more than one random vector per sample does.  Each draw of the null is therefore a fresh state of the
rule, on the same network and at the same step of training.  For a rule that owns nothing it is a random vector per
sample.  Draw k of an epoch comes from the generator `probe/null/epoch/k`.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sonde.core.generators import generator
from sonde.core.seed_statistics import summarise
from sonde.metrics.probes.snapshot import Snapshot
from sonde.metrics.reductions import (
    VectorsWithNorms,
    cosines,
    mean_of_defined,
    median_of_all,
    sample_norms,
    with_norms,
)
from sonde.metrics.rows import Reading, undefined

NO_RULE = "the credit of no rule is known"


def credit_norm(snapshot: Snapshot) -> Iterator[Reading]:
    """Median over samples of ‖a_l‖₂ before normalisation, layers 0 … L."""
    for layer in range(snapshot.depth + 1):
        reason = NO_RULE if snapshot.credits is None else snapshot.unread[layer]
        if snapshot.credits is None or reason:
            yield undefined("credit_norm", reason or NO_RULE, layer=layer)
        else:
            a_Nd = snapshot.pooling.credit(snapshot.credits[layer])
            yield median_of_all("credit_norm", sample_norms(a_Nd), layer)


def credit_cosine(snapshot: Snapshot) -> Iterator[Reading]:
    """Mean over samples of cos(a_l, g_l), layers 0 … L; of BP's gradient `/bp` it is 1.

    `/null` and `/null_std` are its mean and spread over draws by chance, as the rule draws.  Samples whose credit or
    gradient is zero have no cosine and are not counted.
    """
    gradients = [snapshot.pooling.credit(g) for g in snapshot.gradients]
    known_gradients = [with_norms(g_Nd) for g_Nd in gradients]
    for ending, credits in snapshot.candidates.items():
        for layer, g_Nd in enumerate(gradients):
            metric, unread = f"credit_cosine{ending}", snapshot.unread[layer]
            if credits is None or unread:
                yield undefined(metric, unread or NO_RULE, layer=layer)
            else:
                a_Nd = snapshot.pooling.credit(credits[layer])
                yield _mean_cosine(metric, layer, a_Nd, g_Nd, known_gradients[layer])
    chance: list[list[Reading]] = [[] for _ in gradients]
    for drawn in draws(snapshot):
        for layer, (a_Nd, g_Nd, known) in enumerate(zip(drawn, gradients, known_gradients, strict=True)):
            chance[layer].append(_mean_cosine("credit_cosine/null", layer, a_Nd, g_Nd, known))
    for layer, found in enumerate(chance):
        yield from over_draws("credit_cosine", found, layer, snapshot.unread[layer])


def _mean_cosine(metric: str, layer: int, a_Nd: Tensor, g_Nd: Tensor, known_g: VectorsWithNorms) -> Reading:
    cosines_N = cosines(a_Nd, known_g)
    why = _why(a_Nd, g_Nd) if cosines_N.isnan().all() else ""
    return mean_of_defined(metric, cosines_N, layer, why)


def _why(a: Tensor, g: Tensor) -> str:
    """Why no sample has a cosine."""
    for name, v in (("credit", a), ("gradient", g)):
        if not sample_norms(v).any():
            return f"the {name} is zero in every sample"
    return "credit or gradient is zero or not finite in every sample"


def draws(snapshot: Snapshot) -> Iterator[list[Tensor]]:
    """a_0 … a_L of one draw after the other: the vector that is read of each sample, N×d, as it was drawn."""
    context, pooling = snapshot.context, snapshot.pooling
    for k in range(context.draws):
        rng = generator(context.seed, f"probe/null/{context.epoch}/{k}")
        if context.redrawn is None:
            widths = [pooling.width(tuple(h.shape[1:])) for h in snapshot.states]
            drawn = [torch.randn(snapshot.samples, d, generator=rng) for d in widths]
            yield [v_Nd.to(snapshot.losses_N.device) for v_Nd in drawn]
        else:
            yield [pooling.credit(a.detach()) for a in context.redrawn(snapshot, rng)]


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
