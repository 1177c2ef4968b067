"""The definition of every metric, by the name of its probe; and the loss and accuracy of the whole test set.

N samples, d width, K directions.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from sonde.analysis.recompute.sample import (
    Recomputed,
    Sample,
    SnapshotInputs,
    correlation,
    cosine,
    entries,
    finite,
    finite_median,
    first_token,
    mean,
    mean_size,
    norm,
    normal,
    root_mean_square,
    total,
    vector_of,
)

MetricKey = tuple[str, int | None]
"""A metric, and its layer."""
Definition = Callable[[SnapshotInputs], Iterator[tuple[MetricKey, Recomputed]]]

_EPS = math.ulp(1)
_MARGIN = 10  # times the effect of rounding on a loss: smaller changes are undefined
_BATCH, _BATCHES = 128, 8  # of cross_batch_cosine
_LEAD = 1e-5  # of the largest output: smaller differences are rounding in float32


def _loss(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """Mean loss of the probe batch."""
    yield ("loss", None), Recomputed(mean([s.loss for s in inputs.samples]), len(inputs.samples))


def _hidden_norm(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """Median over samples of ‖h_l‖."""
    for l in range(inputs.depth + 1):
        yield ("hidden_norm", l), _median([norm(vector_of(s.states[l])) for s in inputs.samples])


def _growth(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """hidden_norm[l+1]/hidden_norm[l]."""
    norms = [value.number for _, value in _hidden_norm(inputs)]
    for l in range(inputs.depth):
        below, above = norms[l], norms[l + 1]
        ratio = above / below if below and above is not None and math.isfinite(below) else None
        yield ("growth", l), Recomputed(ratio, len(inputs.samples))


def _branch_ratio(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """Median over samples of ‖f_l‖/‖h_l‖, of residual blocks."""
    for l in range(inputs.depth):
        sizes = [(norm(vector_of(s.branches[l])), norm(vector_of(s.states[l]))) for s in inputs.samples]
        ratios = [f / h for f, h in sizes if h > 0 and finite((f, h))] if inputs.net.residual else []
        yield ("branch_ratio", l), _median_of_defined(ratios)


def _branch_cosine(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """Median over samples of cos(f_l, h_l), of residual blocks."""
    for l in range(inputs.depth):
        samples = inputs.samples if inputs.net.residual else []  # without a skip, a branch may change the shape
        cosines = [cosine(vector_of(s.branches[l]), vector_of(s.states[l])) for s in samples]
        defined = [c for c in cosines if c is not None]
        yield ("branch_cosine", l), _median_of_defined(defined)


def _grad_norm(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """Median over samples of ‖g_l‖, g_l = ∂ℓ_i/∂h_l; and of ‖g_L‖/‖e‖ where e is not 0."""
    for l in range(inputs.depth + 1):
        yield ("grad_norm", l), _median([norm(vector_of(s.gradients[l])) for s in inputs.samples])
    sizes = [(norm(vector_of(s.gradients[-1])), norm(entries(s.error))) for s in inputs.samples]
    ratios = [g / e for g, e in sizes if e > 0 and finite((g, e))]
    yield ("grad_per_error", inputs.depth), _median_of_defined(ratios)


def _grad_resolution(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """Cosine, over the whole batch, of g_l in the arithmetic of training with g_l in float64."""
    for l in range(inputs.depth + 1):
        rounded, exact = (
            [number for s in samples for number in vector_of(s.gradients[l])]
            for samples in (inputs.rounded, inputs.samples)
        )
        yield ("grad_resolution", l), Recomputed(cosine(rounded, exact), len(inputs.samples))


def _credit_norm(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """Median over samples of ‖a_l‖."""
    for l, of_layer in enumerate(inputs.credits or []):
        yield ("credit_norm", l), _median([norm(vector_of(a)) for a in of_layer])


def _credit_cosine(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """Mean over samples of cos(a_l, g_l), for the rule's credit, the gradient itself and the null."""
    for ending, credits in inputs.candidates.items():
        for l, of_layer in enumerate(credits or []):
            yield (f"credit_cosine{ending}", l), _mean_cosine(inputs, l, of_layer)
    for l in range(inputs.depth + 1):
        yield from _over_draws("credit_cosine", l, [_mean_cosine(inputs, l, a[l]) for a in inputs.chance])


def _mean_cosine(inputs: SnapshotInputs, layer: int, credits: list[Tensor]) -> Recomputed:
    cosines = [
        cosine(vector_of(a), vector_of(s.gradients[layer])) for a, s in zip(credits, inputs.samples, strict=True)
    ]
    defined = [c for c in cosines if c is not None]
    return _mean(defined, len(defined))


def _over_draws(metric: str, layer: int, drawn: list[Recomputed]) -> Iterator[tuple[MetricKey, Recomputed]]:
    """Mean and sample standard deviation over the defined draws of the null."""
    if not drawn:
        return
    known = [value for value in drawn if value.number is not None]
    numbers = [value.number for value in known if value.number is not None]
    terms, either = mean([value.terms for value in known]), any(value.either for value in drawn)
    fewest, middle = min((value.samples for value in known), default=0), mean(numbers)
    over = Recomputed(middle if known else None, fewest, terms=terms, either=either)
    spread = norm([number - middle for number in numbers]) / math.sqrt(len(known) - 1) if len(known) > 1 else None
    yield (f"{metric}/null", layer), over
    yield (f"{metric}/null_std", layer), Recomputed(spread, len(known), terms=terms, either=either)


def _nudge(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """Mean of ℓ(h_l − η·a_l/(RMS(a_l) + 1e-6)) − ℓ(h_l); RMS over batch, tokens and units."""
    samples = inputs.samples
    rounded = [_rounding(inputs, l) for l in range(inputs.depth + 1)]
    by_chance = normal(len(samples), samples[0].states, inputs.rng("null"))
    candidates = {**inputs.candidates, "/null": by_chance}
    each = [(ending, l, a) for ending, credits in candidates.items() for l, a in enumerate(credits or [])]
    for ending, l, of_layer in each:
        length = root_mean_square([value for a in of_layer for value in entries(a)])
        for eta in inputs.etas:
            key = (f"nudge[{eta:g}]{ending}", l)
            if not 0 < length < math.inf:
                yield key, Recomputed(None, 0)
                continue
            changes = [
                s.losses_from(l, s.states[l] - eta * a / (length + 1e-6))[0] - s.loss
                for a, s in zip(of_layer, samples, strict=True)
            ]
            yield key, _resolved(_mean(changes, len(samples)), abs(mean(changes)), rounded[l])


def _rho(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """Correlation, over samples × directions, of ⟨a_l, εv⟩ with ℓ(h_l + εv) − ℓ(h_l); v unit vectors."""
    rng, samples = inputs.rng("rho"), inputs.samples
    for l in range(inputs.depth + 1):
        width = first_token(samples[0].states[l]).shape[-1]
        drawn_KNd = [torch.randn(len(samples), width, generator=rng) for _ in range(inputs.directions)]
        steps_NKd, changes_NK = [], []
        for i, s in enumerate(samples):
            epsilon = inputs.epsilon if inputs.epsilon is not None else 1e-3 * s.rms(l)
            v_Kd = torch.stack([drawn_Nd[i].double() for drawn_Nd in drawn_KNd])
            step_Kd = epsilon * v_Kd / (v_Kd**2).sum(-1, keepdim=True).sqrt()
            copies = torch.cat([s.moved(l, step_d) for step_d in step_Kd])
            steps_NKd.append(step_Kd)
            changes_NK.append([loss - s.loss for loss in s.losses_from(l, copies)])
        foretold = partial(_correlate, steps_NKd, changes_NK, _rounding(inputs, l))
        for ending, credits in inputs.candidates.items():
            if credits is not None:
                yield (f"rho{ending}", l), foretold(credits[l])
        yield from _over_draws("rho", l, [foretold(credits[l]) for credits in inputs.chance])


def _correlate(
    steps_NKd: list[Tensor], changes_NK: list[list[float]], rounded: list[float], credits: list[Tensor]
) -> Recomputed:
    """The correlation over the samples that moved and whose predictions and changes are finite."""
    predicted_NK = [entries((step_Kd * first_token(a)).sum(-1)) for a, step_Kd in zip(credits, steps_NKd, strict=True)]
    moved_N = [bool((step_Kd != 0).any()) for step_Kd in steps_NKd]
    used = [i for i, moved in enumerate(moved_N) if moved and finite(predicted_NK[i]) and finite(changes_NK[i])]
    predicted = [value for i in used for value in predicted_NK[i]]
    changes = [value for i in used for value in changes_NK[i]]
    if len(changes) < 2:
        return Recomputed(None, len(used))
    middle = mean(changes)
    spread = root_mean_square([change - middle for change in changes])
    known = correlation(predicted, changes)
    value = Recomputed(None, len(used)) if known is None else Recomputed(known[0], len(used), terms=known[1])
    return _resolved(value, spread, [rounded[i] for i in used])


def _resolved(value: Recomputed, change: float, rounded: list[float]) -> Recomputed:
    """The value, undefined where the change of loss is not well above its rounding error."""
    least = _MARGIN * root_mean_square(rounded)
    if value.number is None or change > 2 * least:
        return value
    return value._replace(number=value.number if change > least else None, either=change > least / 2)


def _rounding(inputs: SnapshotInputs, layer: int) -> list[float]:
    """The effect of rounding on the loss of each sample, computed from h_l.

    eps·(ℓ + Σ|e z| + Σ_{k ≥ l} Σ|g_k h_k|), a cross entropy counting as at least 1; plus the change of loss when
    every entry of h_l is moved by its last bit, up or down.
    """
    samples = inputs.samples
    shape = samples[0].states[layer].shape[1:]
    ups = torch.randint(2, (len(samples), *shape), generator=inputs.rng(f"last bit/{layer}"))
    found = []
    for s, up in zip(samples, ups, strict=True):
        h = s.states[layer]
        moved = h + h * (_EPS * (2 * up[None].double() - 1))
        scale = max(s.loss, 1.0) if inputs.classifies else s.loss
        products = [s.error * s.output]
        products += [g * h for g, h in zip(s.gradients[layer:], s.states[layer:], strict=True)]
        scale += total([abs(value) for product in products for value in entries(product)])
        found.append(_EPS * scale + abs(s.losses_from(layer, moved)[0] - s.loss))
    return found


def _cross_batch_cosine(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """Mean pairwise cosine of the mean gradients of 8 disjoint batches of 128 test samples, at layer L//2."""
    layer, means = inputs.depth // 2, []
    batches = min(_BATCHES, inputs.test_samples // _BATCH)
    for first in range(0, batches * _BATCH, _BATCH) if batches > 1 else ():
        some = inputs.some(first, first + _BATCH)
        gradients = [vector_of(Sample(inputs.net, x, y, inputs.loss).gradients[layer]) for x, y in some]
        middle = [mean(column) for column in zip(*gradients, strict=True)]
        if finite(middle) and any(middle):
            means.append(middle)
    pairs = [cosine(one, other) for i, one in enumerate(means) for other in means[:i]]
    defined = [pair for pair in pairs if pair is not None]
    yield ("cross_batch_cosine", layer), _mean(defined, _BATCH * len(means))


def _drift(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """‖W − W_init‖/‖W_init‖ of every parameter tensor."""
    for name, parameter in inputs.net.named_parameters():
        if inputs.initial is None:
            return
        start, end = entries(inputs.initial[name].double()), entries(parameter)
        length = norm(start)
        moved = norm([b - a for a, b in zip(start, end, strict=True)])
        yield (f"drift[{name}]", None), Recomputed(moved / length if length else None, 0)


def _weight_alignment(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """cos(V, W) and ‖V‖/‖W‖ of every matrix W that a rule replaces by V on the way back; and means over blocks."""
    for l in range(inputs.depth):
        found: dict[str, list[float | None]] = {"weight_alignment": [], "weight_ratio": []}
        for name, v in (inputs.feedback or {}).items():
            if name.startswith(f"blocks.{l}."):
                back, forth = entries(v.double()), entries(inputs.net.get_parameter(name))
                found["weight_alignment"].append(cosine(back, forth))
                found["weight_ratio"].append(norm(back) / norm(forth) if norm(forth) else None)
                for metric, values in found.items():
                    yield (f"{metric}[{name}]", l), Recomputed(values[-1], 0)
        for metric, values in found.items():
            known = [value for value in values if value is not None]
            yield (metric, l), Recomputed(mean(known) if known and len(known) == len(values) else None, 0)


def _activation_mean(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """Mean over batch and units of the block's linear output, layers 1 … L."""
    for l, values in enumerate(_linear_outputs(inputs), start=1):
        yield ("activation_mean", l), _mean(values, len(inputs.samples))


def _activation_std(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """Sample standard deviation over batch and units of the block's linear output, layers 1 … L."""
    for l, values in enumerate(_linear_outputs(inputs), start=1):
        middle, n = mean(values), len(values)
        std = norm([value - middle for value in values]) / math.sqrt(n - 1) if n > 1 else None
        yield ("activation_std", l), Recomputed(std, len(inputs.samples))


def _linear_outputs(inputs: SnapshotInputs) -> list[list[float]]:
    of_samples = [[entries(z) for z, _ in s.linear()] for s in inputs.samples]
    return [[value for z in of_layer for value in z] for of_layer in zip(*of_samples, strict=True)]


def _preact_grad_norm(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """‖∂(mean loss)/∂(linear output)‖ over the whole batch, layers 1 … L."""
    n = len(inputs.samples)
    of_samples = [[entries(slope) for _, slope in s.linear()] for s in inputs.samples]
    for l, of_layer in enumerate(zip(*of_samples, strict=True), start=1):
        yield ("preact_grad_norm", l), Recomputed(norm([value / n for slope in of_layer for value in slope]), n)


def _trace(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """The value of every unit for the first probe sample, at every layer."""
    for l, h in enumerate(inputs.samples[0].states):
        for unit, value in enumerate(entries(h)):
            yield (f"state[{unit}]", l), Recomputed(value, 1)


def _evaluation(inputs: SnapshotInputs) -> Iterator[tuple[MetricKey, Recomputed]]:
    """Mean loss and accuracy over the whole test set."""
    losses, right, undecided = [], 0, 0
    for x, y in inputs.some(0, inputs.test_samples):
        with torch.no_grad():
            z = inputs.predict(inputs.net, x[None])
        losses.append(inputs.loss(z, y).item())
        if inputs.classifies:
            outputs = entries(z)
            right += int(z.argmax()) == int(y)
            highest, second = sorted(outputs, reverse=True)[:2]
            undecided += highest - second < _LEAD * max(map(abs, outputs))
    n = len(losses)
    yield ("test_loss", None), Recomputed(mean(losses), n)
    if inputs.classifies:
        yield ("test_acc", None), Recomputed(right / n, n, rounding=undecided / n)


def _mean(values: Sequence[float], samples: int) -> Recomputed:
    return Recomputed(mean(values) if values else None, samples, terms=mean_size(values))


def _median(values: Sequence[float]) -> Recomputed:
    return Recomputed(finite_median(values) if finite(values) else None, len(values))


def _median_of_defined(values: Sequence[float]) -> Recomputed:
    return Recomputed(finite_median(values) if values else None, len(values))


DEFINITIONS: dict[str, Definition] = {
    "loss": _loss,
    "hidden_norm": _hidden_norm,
    "growth": _growth,
    "branch_ratio": _branch_ratio,
    "branch_cosine": _branch_cosine,
    "grad_norm": _grad_norm,
    "credit_norm": _credit_norm,
    "credit_cosine": _credit_cosine,
    "rho": _rho,
    "nudge": _nudge,
    "cross_batch_cosine": _cross_batch_cosine,
    "drift": _drift,
    "activation_mean": _activation_mean,
    "activation_std": _activation_std,
    "preact_grad_norm": _preact_grad_norm,
    "trace": _trace,
    "weight_alignment": _weight_alignment,
    "evaluation": _evaluation,
    "grad_resolution": _grad_resolution,
}
