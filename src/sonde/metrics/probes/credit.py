"""Whether a rule's credit agrees with the backpropagated gradient, and with how the loss changes when a state is moved.

ρ correlates true changes of the loss with those that the credit predicts; a nudge follows the credit.  N samples,
d width, K directions, J draws, E step sizes, M moved copies of a state.

The null is what chance scores in place of the credit.  A rule that owns matrices or networks uses the same ones for
every sample, so its credit scatters around chance more than one random vector per sample does.  Each draw of the null
is therefore a fresh state of the rule, on the same network and at the same step of training.  For a rule that owns
nothing it is a random vector per sample.  Draw k of an epoch comes from the generator `probe/null/epoch/k`.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sonde.core.generators import generator
from sonde.core.seed_statistics import summarise
from sonde.metrics.probes.signal import Snapshot
from sonde.metrics.reductions import (
    VectorsWithNorms,
    cosines,
    mean_of_defined,
    median_of_all,
    pearson,
    rms,
    sample_norms,
    with_norms,
)
from sonde.metrics.rows import Reading, undefined
from sonde.network import tiled, vector_axis

NO_RULE = "the credit of no rule is known"


def no_credit(snapshot: Snapshot) -> str:
    """Why there is no credit to measure."""
    return snapshot.context.undefined_credit or NO_RULE


def credit_norm(snapshot: Snapshot) -> Iterator[Reading]:
    """Median over samples of ‖a_l‖₂ before normalisation, layers 0 … L."""
    for layer in range(snapshot.depth + 1):
        reason = no_credit(snapshot) if snapshot.credits is None else snapshot.unread[layer]
        if snapshot.credits is None or reason:
            yield undefined("credit_norm", reason or NO_RULE, layer=layer)
        else:
            a_Nd = snapshot.pooling.credit(snapshot.credits[layer])
            yield median_of_all("credit_norm", sample_norms(a_Nd), layer)


def credit_cosine(snapshot: Snapshot) -> Iterator[Reading]:
    """Mean over samples of cos(a_l, g_l), layers 0 … L; for BP's gradient, `/bp`, it is 1.

    `/null` and `/null_std` are mean and standard deviation over new draws of the rule's random matrices.  Samples
    whose credit or gradient is zero have no cosine and are not counted.
    """
    gradients = [snapshot.pooling.credit(g) for g in snapshot.gradients]
    known_gradients = [with_norms(g_Nd) for g_Nd in gradients]
    for ending, credits in snapshot.candidates.items():
        for layer, g_Nd in enumerate(gradients):
            metric, unread = f"credit_cosine{ending}", snapshot.unread[layer]
            if credits is None or unread:
                yield undefined(metric, unread or no_credit(snapshot), layer=layer)
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


RELATIVE_EPSILON = 1e-3
_BYTES = 2**27  # of draws that are kept at a time
_NUMBERS = 2**21  # in the steps that are predicted together
_VECTORS = 1024  # that pass through the rest of the network together: their states stay in the cache
_MARGIN = 10  # changes this many times larger than their rounding error lose half a percent of a correlation


def rho(snapshot: Snapshot) -> Iterator[Reading]:
    """Correlation, over samples × directions, of the predicted ⟨a_l, εv⟩ with the true ℓ(h_l + εv) − ℓ(h_l).

    v are random unit directions of the pooled state, drawn for each sample.  ε is 1e-3 × the RMS of the pooled state,
    or absolute.  The state is moved so that the pooled state moves by εv: for `cls` and `last` that token moves, for
    `mean` all tokens do.  `/bp` is the same with BP's gradient, the ceiling.  `/null` and `/null_std` are mean and
    standard deviation over new draws of the rule's random matrices.  All use the same directions and true changes.
    """
    rng = snapshot.rng("rho")
    for layer, chance in _chance(snapshot):
        credits = {ending: None if a is None else a[layer] for ending, a in snapshot.candidates.items()}
        epsilon_N = _epsilon(snapshot, layer)
        known = {ending: [snapshot.pooling.credit(a)] for ending, a in credits.items() if a is not None}
        known["/null"] = chance
        a_JNd = torch.stack([a_Nd.to(epsilon_N.dtype) for several in known.values() for a_Nd in several])
        predicted_JKN, changed_KN = _predict_and_measure(snapshot, layer, a_JNd, epsilon_N, rng)
        parts = torch.split(predicted_JKN, [len(several) for several in known.values()])
        resolution_N = resolution(snapshot, layer)
        measured = {
            ending: _correlate(f"rho{ending}", layer, part_JKN, changed_KN, epsilon_N, resolution_N)
            for ending, part_JKN in zip(known, parts, strict=True)
        }
        for ending in credits:
            metric, unread = f"rho{ending}", snapshot.unread[layer]
            if ending not in measured or unread:
                yield undefined(metric, unread or no_credit(snapshot), layer=layer)
            else:
                yield measured[ending][0]
        yield from over_draws("rho", measured["/null"], layer, snapshot.unread[layer])


def _chance(snapshot: Snapshot) -> Iterator[tuple[int, list[Tensor]]]:
    """The draws of each layer, N×d each; they are drawn again for every few layers that fit into memory together, where
    random vectors are kept in the float32 in which they are drawn.
    """
    widths = [snapshot.pooling.width(tuple(h.shape[1:])) for h in snapshot.states]
    number = 4 if snapshot.context.redrawn is None else 8
    sizes = [snapshot.context.draws * snapshot.samples * width * number for width in widths]
    layers = list(range(snapshot.depth + 1))
    while layers:
        fit = max(1, sum(total <= _BYTES for total in itertools.accumulate(sizes[layer] for layer in layers)))
        together, layers = layers[:fit], layers[fit:]
        found = [[credits[layer] for layer in together] for credits in draws(snapshot)]
        for place, layer in enumerate(together):
            yield layer, [credits[place] for credits in found]


def _epsilon(snapshot: Snapshot, layer: int) -> Tensor:
    if snapshot.context.epsilon is not None:
        return torch.full_like(snapshot.losses_N, snapshot.context.epsilon)
    h_Nd = snapshot.pooling.read(snapshot.states[layer])
    rms_N = sample_norms(h_Nd) / math.sqrt(h_Nd.shape[-1])
    return RELATIVE_EPSILON * rms_N


def _predict_and_measure(
    snapshot: Snapshot, layer: int, a_JNd: Tensor, epsilon_N: Tensor, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Changes that J credits predict, J×K×N, and true ones, K×N; as many directions a pass as fit."""
    h, directions = snapshot.states[layer], snapshot.context.directions
    _, samples, d = a_JNd.shape
    together = copies_a_pass(h)
    size = max(together, min(directions, _NUMBERS // (samples * d)))
    buffer_KNd = a_JNd.new_empty(size, samples, d)
    predicted_NKJ = a_JNd.new_empty(samples, directions, len(a_JNd))
    changed = []
    for first in range(0, directions, size):
        steps_KNd = _fill(buffer_KNd[: directions - first], epsilon_N, rng)
        predictions_NKJ = torch.bmm(steps_KNd.transpose(0, 1), a_JNd.permute(1, 2, 0))
        predicted_NKJ[:, first : first + size] = predictions_NKJ
        for some_kNd in torch.split(steps_KNd, together):
            changed.append(loss_changes(snapshot, layer, snapshot.pooling.moved(h, some_kNd)))
    return predicted_NKJ.permute(2, 1, 0), torch.cat(changed)


def _fill(steps_KNd: Tensor, epsilon_N: Tensor, rng: torch.Generator) -> Tensor:
    """Random directions, each as long as ε of its sample, in a buffer that is used again."""
    for v_Nd in steps_KNd:
        v_Nd.copy_(torch.randn(v_Nd.shape, generator=rng))
        v_Nd.mul_((epsilon_N / torch.linalg.vector_norm(v_Nd, dim=-1))[:, None])
    return steps_KNd


def _correlate(
    metric: str, layer: int, predicted_JKN: Tensor, changed_KN: Tensor, epsilon_N: Tensor, resolution_N: Tensor
) -> list[Reading]:
    """A reading for each of J credits."""
    used_JN = (predicted_JKN.isfinite() & changed_KN.isfinite()).all(1) & (epsilon_N > 0)
    if (used_JN != used_JN[0]).any():  # not of the same samples: one after the other
        return [
            _correlate(metric, layer, one_1KN, changed_KN, epsilon_N, resolution_N)[0]
            for one_1KN in torch.split(predicted_JKN, 1)
        ]
    used_N = used_JN[0]
    samples = int(used_N.sum())
    reason: str | None = "states or loss changes are zero or not finite"
    if samples * len(changed_KN) >= 2:
        changed = changed_KN[:, used_N]
        reason = unresolved(rms(changed - changed.mean()), resolution_N[used_N])
    if reason is not None:
        return [undefined(metric, reason, layer=layer, samples=samples)] * len(predicted_JKN)
    found = []
    for value in pearson(predicted_JKN[:, :, used_N].flatten(1), changed.flatten()):
        if math.isnan(value):
            why = "the credit predicts the same change everywhere"
            found.append(undefined(metric, why, layer=layer, samples=samples))
        else:
            found.append(Reading(metric=metric, layer=layer, value=value, samples=samples))
    return found


def nudge(snapshot: Snapshot) -> Iterator[Reading]:
    """Mean change of the loss after h_l ← h_l − η·â_l, as `nudge[η]`.

    `/bp` is the same with BP's gradient.  `/null` is the same with one random vector for each sample, for every rule.
    â = a/(RMS(a) + 1e-6), with the RMS over the whole tensor, as in training.  A credit far below 1e-6 therefore moves
    the state by less than η.
    """
    candidates = {**snapshot.candidates, "/null": random_vectors(snapshot, snapshot.rng("null"))}
    for layer in range(snapshot.depth + 1):
        resolution_N = resolution(snapshot, layer)
        # Under bp the rule's credit is the gradient: one measurement serves both.
        measured: dict[int, Tensor | str] = {id(None): no_credit(snapshot)}
        for ending, credits in candidates.items():
            a = None if credits is None else credits[layer]
            if a is not None and id(a) not in measured:
                measured[id(a)] = _nudged(snapshot, layer, a)
            found = measured[id(a)]
            for index, eta in enumerate(snapshot.context.etas):
                metric = f"nudge[{eta:g}]{ending}"
                if isinstance(found, str):
                    yield undefined(metric, found, layer=layer)
                else:
                    yield _mean_change(metric, layer, found[index], resolution_N)


def _nudged(snapshot: Snapshot, layer: int, a: Tensor) -> Tensor | str:
    """The change of every sample's loss at every η, E×N, or why there is none."""
    size = rms(a)
    if not 0 < size < float("inf"):
        return "the credit is zero" if size == 0 else "the credit is not finite"
    h, unit = snapshot.states[layer], a / (size + 1e-6)
    return loss_changes(snapshot, layer, torch.stack([h - eta * unit for eta in snapshot.context.etas]))


def _mean_change(metric: str, layer: int, changes_N: Tensor, resolution_N: Tensor) -> Reading:
    finite, n = int(changes_N.isfinite().sum()), len(changes_N)
    if finite < n:
        reason = f"the change of loss is not finite in {n - finite} of {n} samples"
        return undefined(metric, reason, layer=layer, samples=finite)
    mean = changes_N.mean().item()
    too_small = unresolved(abs(mean), resolution_N)
    if too_small:
        return undefined(metric, too_small, layer=layer, samples=n)
    return Reading(metric=metric, layer=layer, value=mean, samples=n)


def copies_a_pass(h: Tensor) -> int:
    """How many copies of a state pass through the rest of the network together."""
    return max(1, _VECTORS // h.select(vector_axis(h), 0).numel())


@torch.no_grad()
def loss_changes(snapshot: Snapshot, layer: int, moved: Tensor) -> Tensor:
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
    measured_N = loss_changes(snapshot, layer, (h + h * (eps * signs))[None])[0].abs()
    size_N = snapshot.losses_N.abs().clamp_min(snapshot.loss.floor)
    error_NC = snapshot.loss.error(snapshot.output_NC, snapshot.y)
    pairs = [(error_NC, snapshot.output_NC)]
    pairs += zip(snapshot.gradients[layer:], snapshot.states[layer:], strict=True)
    for slope, value in pairs:
        size_N = size_N + (slope * value).abs().flatten(1).sum(-1)
    return eps * size_N + measured_N


def unresolved(change: float, resolution_N: Tensor) -> str | None:
    """Why changes of this size are below rounding, or None if they are not."""
    least = _MARGIN * rms(resolution_N)
    if change > least:
        return None
    return f"a loss change of {change:.1e} is below what float64 resolves here, {least:.1e}"
