"""Does credit foretell the loss?  N samples, d width, K directions."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from sonde.probes.credit import NO_RULE
from sonde.probes.norms import rms, sample_norms
from sonde.probes.snapshot import Snapshot
from sonde.probes.tails import changes, copies_a_pass, resolution, unresolved
from sonde.rows import Reading, undefined

RELATIVE_EPSILON = 1e-3


def rho(snapshot: Snapshot) -> Iterator[Reading]:
    """Correlation, over samples × directions, of the predicted ⟨a_l, εv⟩ with the true ℓ(h_l + εv) − ℓ(h_l).

    v are unit random directions in the space of what the reader reads, each sample's own; ε is 1e-3 × RMS of what is
    read of h_l, or absolute.  The state is moved so that what is read moves by εv: of tokens the one that is read, or
    all of them where their mean is.  BP's gradient `/bp` is the ceiling, a random vector `/null` the null; all share
    the directions and the true changes.
    """
    rng = snapshot.rng("rho")
    for layer in range(snapshot.depth + 1):
        credits = {ending: None if a is None else a[layer] for ending, a in snapshot.candidates.items()}
        epsilon_N = _epsilon(snapshot, layer)
        predicted, changed_KN = _predict_and_measure(snapshot, layer, credits, epsilon_N, rng)
        resolution_N = resolution(snapshot, layer)
        for ending in credits:
            metric = f"rho{ending}"
            if ending not in predicted or snapshot.unread[layer]:
                yield undefined(metric, snapshot.unread[layer] or NO_RULE, layer=layer)
            else:
                yield _correlate(metric, layer, predicted[ending], changed_KN, epsilon_N, resolution_N)


def _epsilon(snapshot: Snapshot, layer: int) -> Tensor:
    if snapshot.context.epsilon is not None:
        return torch.full_like(snapshot.losses_N, snapshot.context.epsilon)
    h_Nd = snapshot.reader.read(snapshot.states[layer])
    rms_N = sample_norms(h_Nd) / math.sqrt(h_Nd.shape[-1])
    return RELATIVE_EPSILON * rms_N


def _predict_and_measure(
    snapshot: Snapshot,
    layer: int,
    credits: dict[str, Tensor | None],
    epsilon_N: Tensor,
    rng: torch.Generator,
) -> tuple[dict[str, Tensor], Tensor]:
    """Predicted changes of each candidate and the true ones, K×N each; as many directions a pass as fit."""
    h, reader, directions = snapshot.states[layer], snapshot.reader, snapshot.context.directions
    d = reader.width(tuple(h.shape[1:]))
    known = {ending: reader.credit(a).double() for ending, a in credits.items() if a is not None}
    predicted: dict[str, list[Tensor]] = {ending: [] for ending in known}
    changed = []
    together = copies_a_pass(h)
    for first in range(0, directions, together):
        k = min(together, directions - first)
        steps_kNd = torch.stack([_directions(epsilon_N, d, rng) for _ in range(k)]) * epsilon_N[:, None]
        for ending, a_Nd in known.items():
            predicted[ending].append(torch.linalg.vecdot(steps_kNd, a_Nd))
        changed.append(changes(snapshot, layer, reader.moved(h, steps_kNd)))
    return {ending: torch.cat(parts) for ending, parts in predicted.items()}, torch.cat(changed)


def _directions(like_N: Tensor, d: int, rng: torch.Generator) -> Tensor:
    """A random unit vector for each sample."""
    v_Nd = torch.randn(len(like_N), d, generator=rng).to(like_N)
    return v_Nd / sample_norms(v_Nd)[:, None]


def _correlate(
    metric: str, layer: int, predicted_KN: Tensor, changed_KN: Tensor, epsilon_N: Tensor, resolution_N: Tensor
) -> Reading:
    used_N = (predicted_KN.isfinite() & changed_KN.isfinite()).all(0) & (epsilon_N > 0)
    samples = int(used_N.sum())
    if samples * len(changed_KN) < 2:
        return undefined(
            metric, "states or loss changes are zero or not finite", layer=layer, samples=samples
        )
    predicted, changed = predicted_KN[:, used_N], changed_KN[:, used_N]
    reason = unresolved(rms(changed - changed.mean()), resolution_N[used_N])
    value = None if reason else pearson(predicted, changed)
    if value is None:
        reason = reason or "the credit predicts the same change everywhere"
        return undefined(metric, reason, layer=layer, samples=samples)
    return Reading(metric=metric, layer=layer, value=value, samples=samples)


def pearson(x: Tensor, y: Tensor) -> float | None:
    """The correlation of all entries; None where one side has no spread beyond rounding."""
    deviations = []
    for values in (x, y):
        largest = values.abs().max()
        centred = values / largest - (values / largest).mean()
        if not rms(centred) > 4 * torch.finfo(centred.dtype).eps:
            return None
        deviations.append(centred / rms(centred))
    return float((deviations[0] * deviations[1]).mean())
