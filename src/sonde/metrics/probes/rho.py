"""Does credit foretell the loss?  N samples, d width, K directions, J draws."""

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from sonde.metrics.probes.credit import NO_RULE
from sonde.metrics.probes.null import draws, over_draws
from sonde.metrics.probes.over_samples import rms, sample_norms
from sonde.metrics.probes.snapshot import Snapshot
from sonde.metrics.probes.tails import changes, copies_a_pass, resolution, unresolved
from sonde.metrics.rows import Reading, undefined

RELATIVE_EPSILON = 1e-3
BYTES = 2**27  # of draws that are kept at a time
STEPS = 2**21  # numbers in the steps that are predicted together


def rho(snapshot: Snapshot) -> Iterator[Reading]:
    """Correlation, over samples × directions, of the predicted ⟨a_l, εv⟩ with the true ℓ(h_l + εv) − ℓ(h_l).

    v are unit random directions in the space of what the reader reads, each sample's own; ε is 1e-3 × RMS of what is
    read of h_l, or absolute.  The state is moved so that what is read moves by εv: of tokens the one that is read, or
    all of them where their mean is.  BP's gradient `/bp` is the ceiling; `/null` and `/null_std` are mean and spread
    over draws by chance, as the rule draws.  All share the directions and the true changes.
    """
    rng = snapshot.rng("rho")
    for layer, chance in _chance(snapshot):
        credits = {ending: None if a is None else a[layer] for ending, a in snapshot.candidates.items()}
        epsilon_N = _epsilon(snapshot, layer)
        known = {ending: [snapshot.reader.credit(a)] for ending, a in credits.items() if a is not None}
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
                yield undefined(metric, unread or NO_RULE, layer=layer)
            else:
                yield measured[ending][0]
        yield from over_draws("rho", measured["/null"], layer, snapshot.unread[layer])


def _chance(snapshot: Snapshot) -> Iterator[tuple[int, list[Tensor]]]:
    """The draws of each layer, N×d each; they are drawn again for every few layers that fit into memory together, where
    random vectors are kept in the float32 in which they are drawn.
    """
    widths = [snapshot.reader.width(tuple(h.shape[1:])) for h in snapshot.states]
    number = 4 if snapshot.context.redrawn is None else 8
    sizes = [snapshot.context.draws * snapshot.samples * width * number for width in widths]
    layers = list(range(snapshot.depth + 1))
    while layers:
        fit = max(1, sum(total <= BYTES for total in itertools.accumulate(sizes[layer] for layer in layers)))
        together, layers = layers[:fit], layers[fit:]
        found = [[credits[layer] for layer in together] for credits in draws(snapshot)]
        for place, layer in enumerate(together):
            yield layer, [credits[place] for credits in found]


def _epsilon(snapshot: Snapshot, layer: int) -> Tensor:
    if snapshot.context.epsilon is not None:
        return torch.full_like(snapshot.losses_N, snapshot.context.epsilon)
    h_Nd = snapshot.reader.read(snapshot.states[layer])
    rms_N = sample_norms(h_Nd) / math.sqrt(h_Nd.shape[-1])
    return RELATIVE_EPSILON * rms_N


def _predict_and_measure(
    snapshot: Snapshot, layer: int, a_JNd: Tensor, epsilon_N: Tensor, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Changes that J credits predict, J×K×N, and true ones, K×N; as many directions a pass as fit."""
    h, directions = snapshot.states[layer], snapshot.context.directions
    _, samples, d = a_JNd.shape
    together = copies_a_pass(h)
    size = max(together, min(directions, STEPS // (samples * d)))
    buffer_KNd = a_JNd.new_empty(size, samples, d)
    predicted_NKJ = a_JNd.new_empty(samples, directions, len(a_JNd))
    changed = []
    for first in range(0, directions, size):
        steps_KNd = _fill(buffer_KNd[: directions - first], epsilon_N, rng)
        predictions_NKJ = torch.bmm(steps_KNd.transpose(0, 1), a_JNd.permute(1, 2, 0))
        predicted_NKJ[:, first : first + size] = predictions_NKJ
        for some_kNd in torch.split(steps_KNd, together):
            changed.append(changes(snapshot, layer, snapshot.reader.moved(h, some_kNd)))
    return predicted_NKJ.permute(2, 1, 0), torch.cat(changed)


def _fill(steps_KNd: Tensor, epsilon_N: Tensor, rng: torch.Generator) -> Tensor:
    """Random directions, each as long as ε of its sample, in a buffer that is used again."""
    for v_Nd in steps_KNd:
        v_Nd.copy_(torch.randn(v_Nd.shape, generator=rng))
        v_Nd.mul_((epsilon_N / torch.linalg.vector_norm(v_Nd, dim=-1))[:, None])
    return steps_KNd


def _correlate(
    metric: str,
    layer: int,
    predicted_JKN: Tensor,
    changed_KN: Tensor,
    epsilon_N: Tensor,
    resolution_N: Tensor,
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


def pearson(x_JM: Tensor, y_M: Tensor) -> list[float]:
    """The correlation of each row with y; NaN where one side has no spread beyond rounding."""
    x_JM, y_M = _deviations(x_JM), _deviations(y_M[None])[0]
    found: list[float] = ((x_JM * y_M).mean(-1)).tolist()
    return found


def _deviations(values_JM: Tensor) -> Tensor:
    """Each row less its mean, over its standard deviation; NaN where that is rounding."""
    scaled_JM = values_JM / values_JM.abs().amax(-1, keepdim=True)
    centred_JM = scaled_JM - scaled_JM.mean(-1, keepdim=True)
    size_J1 = centred_JM.square().mean(-1, keepdim=True).sqrt()
    return centred_JM / torch.where(size_J1 > 4 * torch.finfo(size_J1.dtype).eps, size_J1, torch.nan)
