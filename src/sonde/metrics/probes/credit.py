"""Agreement of a rule's credit with the backpropagated gradient.  N samples, d width."""

from collections.abc import Iterator

from torch import Tensor

from sonde.metrics.probes.null import draws, over_draws
from sonde.metrics.probes.over_samples import (
    VectorsWithNorms,
    cosines,
    mean_of_defined,
    median_of_all,
    sample_norms,
    with_norms,
)
from sonde.metrics.probes.snapshot import Snapshot
from sonde.metrics.rows import Reading, undefined

NO_RULE = "the credit of no rule is known"


def credit_norm(snapshot: Snapshot) -> Iterator[Reading]:
    """Median over samples of ‖a_l‖₂ before normalisation, layers 0 … L."""
    for layer in range(snapshot.depth + 1):
        reason = NO_RULE if snapshot.credits is None else snapshot.unread[layer]
        if snapshot.credits is None or reason:
            yield undefined("credit_norm", reason or NO_RULE, layer=layer)
        else:
            a_Nd = snapshot.reader.credit(snapshot.credits[layer])
            yield median_of_all("credit_norm", sample_norms(a_Nd), layer)


def credit_cosine(snapshot: Snapshot) -> Iterator[Reading]:
    """Mean over samples of cos(a_l, g_l), layers 0 … L; of BP's gradient `/bp` it is 1.

    `/null` and `/null_std` are its mean and spread over draws by chance, as the rule draws.  Samples whose credit or
    gradient is zero have no cosine and are not counted.
    """
    gradients = [snapshot.reader.credit(g) for g in snapshot.gradients]
    known_gradients = [with_norms(g_Nd) for g_Nd in gradients]
    for ending, credits in snapshot.candidates.items():
        for layer, g_Nd in enumerate(gradients):
            metric, unread = f"credit_cosine{ending}", snapshot.unread[layer]
            if credits is None or unread:
                yield undefined(metric, unread or NO_RULE, layer=layer)
            else:
                a_Nd = snapshot.reader.credit(credits[layer])
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
