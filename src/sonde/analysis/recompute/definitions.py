"""Every probe as its definition reads, under the probe's name; and the test set as a whole.

N samples, d width, K directions.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from sonde.analysis.recompute.numbers import (
    Value,
    correlation,
    cosine,
    finite,
    mean,
    median,
    norm,
    rms,
    size,
    total,
)
from sonde.analysis.recompute.sample import Sample, entries, first_token, forward, read
from sonde.analysis.recompute.setting import Setting, normal

Key = tuple[str, int | None]
"""A metric, and its layer."""
Definition = Callable[[Setting], Iterator[tuple[Key, Value]]]

EPS = math.ulp(1)
MARGIN = 10  # times what rounding may change a loss: changes below that say nothing
BATCH, BATCHES = 128, 8  # of cross_batch_cosine
LEAD = 1e-5  # of the largest output: what float32 cannot tell apart


def loss(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """Mean loss of the probe batch."""
    yield ("loss", None), Value(mean([s.loss for s in setting.samples]), len(setting.samples))


def hidden_norm(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """Median over samples of ‖h_l‖."""
    for l in range(setting.depth + 1):
        yield ("hidden_norm", l), _median([norm(read(s.states[l])) for s in setting.samples])


def growth(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """hidden_norm[l+1]/hidden_norm[l]."""
    norms = [value.number for _, value in hidden_norm(setting)]
    for l in range(setting.depth):
        below, above = norms[l], norms[l + 1]
        ratio = above / below if below and above is not None and math.isfinite(below) else None
        yield ("growth", l), Value(ratio, len(setting.samples))


def branch_ratio(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """Median over samples of ‖f_l‖/‖h_l‖, of residual blocks."""
    for l in range(setting.depth):
        sizes = [(norm(read(s.branches[l])), norm(read(s.states[l]))) for s in setting.samples]
        ratios = [f / h for f, h in sizes if h > 0 and finite((f, h))] if setting.net.residual else []
        yield ("branch_ratio", l), _median_of_defined(ratios)


def branch_cosine(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """Median over samples of cos(f_l, h_l), of residual blocks."""
    for l in range(setting.depth):
        samples = setting.samples if setting.net.residual else []  # a branch alone may have another shape
        cosines = [cosine(read(s.branches[l]), read(s.states[l])) for s in samples]
        defined = [c for c in cosines if c is not None]
        yield ("branch_cosine", l), _median_of_defined(defined)


def grad_norm(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """Median over samples of ‖g_l‖, g_l = ∂ℓ_i/∂h_l; and of ‖g_L‖/‖e‖ where there is an error."""
    for l in range(setting.depth + 1):
        yield ("grad_norm", l), _median([norm(read(s.gradients[l])) for s in setting.samples])
    sizes = [(norm(read(s.gradients[-1])), norm(entries(s.error))) for s in setting.samples]
    ratios = [g / e for g, e in sizes if e > 0 and finite((g, e))]
    yield ("grad_per_error", setting.depth), _median_of_defined(ratios)


def grad_resolution(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """cos over the whole batch of g_l in the arithmetic of training and g_l in float64."""
    for l in range(setting.depth + 1):
        rounded, exact = (
            [number for s in samples for number in read(s.gradients[l])]
            for samples in (setting.rounded, setting.samples)
        )
        yield ("grad_resolution", l), Value(cosine(rounded, exact), len(setting.samples))


def credit_norm(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """Median over samples of ‖a_l‖."""
    for l, of_layer in enumerate(setting.credits or []):
        yield ("credit_norm", l), _median([norm(read(a)) for a in of_layer])


def credit_cosine(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """Mean over samples of cos(a_l, g_l), for the rule's credit, the gradient itself and chance."""
    for ending, credits in setting.candidates.items():
        for l, of_layer in enumerate(credits or []):
            yield (f"credit_cosine{ending}", l), _mean_cosine(setting, l, of_layer)
    for l in range(setting.depth + 1):
        yield from _over_draws("credit_cosine", l, [_mean_cosine(setting, l, a[l]) for a in setting.chance])


def _mean_cosine(setting: Setting, layer: int, credits: list[Tensor]) -> Value:
    cosines = [cosine(read(a), read(s.gradients[layer])) for a, s in zip(credits, setting.samples, strict=True)]
    defined = [c for c in cosines if c is not None]
    return _mean(defined, len(defined))


def _over_draws(metric: str, layer: int, drawn: list[Value]) -> Iterator[tuple[Key, Value]]:
    """Mean and sample standard deviation over the draws of chance that have a value."""
    if not drawn:
        return
    known = [value for value in drawn if value.number is not None]
    numbers = [value.number for value in known if value.number is not None]
    terms, either = mean([value.terms for value in known]), any(value.either for value in drawn)
    fewest, middle = min((value.samples for value in known), default=0), mean(numbers)
    over = Value(middle if known else None, fewest, terms=terms, either=either)
    spread = norm([number - middle for number in numbers]) / math.sqrt(len(known) - 1) if len(known) > 1 else None
    yield (f"{metric}/null", layer), over
    yield (f"{metric}/null_std", layer), Value(spread, len(known), terms=terms, either=either)


def nudge(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """Mean of ℓ(h_l − η·a_l/(RMS(a_l) + 1e-6)) − ℓ(h_l); RMS over batch, tokens and units."""
    samples = setting.samples
    rounded = [_rounding(setting, l) for l in range(setting.depth + 1)]
    by_chance = normal(len(samples), samples[0].states, setting.rng("null"))
    candidates = {**setting.candidates, "/null": by_chance}
    each = [(ending, l, a) for ending, credits in candidates.items() for l, a in enumerate(credits or [])]
    for ending, l, of_layer in each:
        length = rms([value for a in of_layer for value in entries(a)])
        for eta in setting.etas:
            key = (f"nudge[{eta:g}]{ending}", l)
            if not 0 < length < math.inf:
                yield key, Value(None, 0)
                continue
            changes = [
                s.losses_from(l, s.states[l] - eta * a / (length + 1e-6))[0] - s.loss
                for a, s in zip(of_layer, samples, strict=True)
            ]
            yield key, _resolved(_mean(changes, len(samples)), abs(mean(changes)), rounded[l])


def rho(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """Correlation, over samples × directions, of ⟨a_l, εv⟩ with ℓ(h_l + εv) − ℓ(h_l); v unit vectors."""
    rng, samples = setting.rng("rho"), setting.samples
    for l in range(setting.depth + 1):
        width = first_token(samples[0].states[l]).shape[-1]
        drawn_KNd = [torch.randn(len(samples), width, generator=rng) for _ in range(setting.directions)]
        steps_NKd, changes_NK = [], []
        for i, s in enumerate(samples):
            epsilon = setting.epsilon if setting.epsilon is not None else 1e-3 * s.rms(l)
            v_Kd = torch.stack([drawn_Nd[i].double() for drawn_Nd in drawn_KNd])
            step_Kd = epsilon * v_Kd / (v_Kd**2).sum(-1, keepdim=True).sqrt()
            copies = torch.cat([s.moved(l, step_d) for step_d in step_Kd])
            steps_NKd.append(step_Kd)
            changes_NK.append([loss - s.loss for loss in s.losses_from(l, copies)])
        foretold = partial(_correlate, steps_NKd, changes_NK, _rounding(setting, l))
        for ending, credits in setting.candidates.items():
            if credits is not None:
                yield (f"rho{ending}", l), foretold(credits[l])
        yield from _over_draws("rho", l, [foretold(credits[l]) for credits in setting.chance])


def _correlate(
    steps_NKd: list[Tensor], changes_NK: list[list[float]], rounded: list[float], credits: list[Tensor]
) -> Value:
    """Over the samples that were moved and whose predictions and changes are finite."""
    predicted_NK = [entries((step_Kd * first_token(a)).sum(-1)) for a, step_Kd in zip(credits, steps_NKd, strict=True)]
    moved_N = [bool((step_Kd != 0).any()) for step_Kd in steps_NKd]
    used = [i for i, moved in enumerate(moved_N) if moved and finite(predicted_NK[i]) and finite(changes_NK[i])]
    predicted = [value for i in used for value in predicted_NK[i]]
    changes = [value for i in used for value in changes_NK[i]]
    if len(changes) < 2:
        return Value(None, len(used))
    middle = mean(changes)
    spread = rms([change - middle for change in changes])
    known = correlation(predicted, changes)
    value = Value(None, len(used)) if known is None else Value(known[0], len(used), terms=known[1])
    return _resolved(value, spread, [rounded[i] for i in used])


def _resolved(value: Value, change: float, rounded: list[float]) -> Value:
    """Undefined where the change of loss that it comes from is not well above its rounding error."""
    least = MARGIN * rms(rounded)
    if value.number is None or change > 2 * least:
        return value
    return value._replace(number=value.number if change > least else None, either=change > least / 2)


def _rounding(setting: Setting, layer: int) -> list[float]:
    """By how much rounding may change the loss of each sample, reached from h_l.

    eps·(ℓ + Σ|e z| + Σ_{k ≥ l} Σ|g_k h_k|), a cross entropy counting as at least 1; plus the change of loss when
    every entry of h_l is moved by its last bit, up or down.
    """
    samples = setting.samples
    shape = samples[0].states[layer].shape[1:]
    ups = torch.randint(2, (len(samples), *shape), generator=setting.rng(f"last bit/{layer}"))
    found = []
    for s, up in zip(samples, ups, strict=True):
        h = s.states[layer]
        moved = h + h * (EPS * (2 * up[None].double() - 1))
        scale = max(s.loss, 1.0) if setting.classifies else s.loss
        products = [s.error * s.output]
        products += [g * h for g, h in zip(s.gradients[layer:], s.states[layer:], strict=True)]
        scale += total([abs(value) for product in products for value in entries(product)])
        found.append(EPS * scale + abs(s.losses_from(layer, moved)[0] - s.loss))
    return found


def cross_batch_cosine(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """Mean pairwise cosine of the mean gradients of 8 disjoint batches of 128 test samples, at layer L//2."""
    layer, means = setting.depth // 2, []
    batches = min(BATCHES, setting.test_samples // BATCH)
    for first in range(0, batches * BATCH, BATCH) if batches > 1 else ():
        some = setting.some(first, first + BATCH)
        gradients = [read(Sample(setting.net, x, y, setting.loss).gradients[layer]) for x, y in some]
        middle = [mean(column) for column in zip(*gradients, strict=True)]
        if finite(middle) and any(middle):
            means.append(middle)
    pairs = [cosine(one, other) for i, one in enumerate(means) for other in means[:i]]
    defined = [pair for pair in pairs if pair is not None]
    yield ("cross_batch_cosine", layer), _mean(defined, BATCH * len(means))


def drift(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """‖W − W_init‖/‖W_init‖ of every parameter tensor."""
    for name, parameter in setting.net.named_parameters():
        if setting.initial is None:
            return
        start, end = entries(setting.initial[name].double()), entries(parameter)
        length = norm(start)
        moved = norm([b - a for a, b in zip(start, end, strict=True)])
        yield (f"drift[{name}]", None), Value(moved / length if length else None, 0)


def weight_alignment(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """cos(V, W) and ‖V‖/‖W‖ of every matrix W of the blocks that a rule replaces by V on the way back; and their
    mean over each block."""
    for l in range(setting.depth):
        found: dict[str, list[float | None]] = {"weight_alignment": [], "weight_ratio": []}
        for name, v in (setting.feedback or {}).items():
            if name.startswith(f"blocks.{l}."):
                back, forth = entries(v.double()), entries(setting.net.get_parameter(name))
                found["weight_alignment"].append(cosine(back, forth))
                found["weight_ratio"].append(norm(back) / norm(forth) if norm(forth) else None)
                for metric, values in found.items():
                    yield (f"{metric}[{name}]", l), Value(values[-1], 0)
        for metric, values in found.items():
            known = [value for value in values if value is not None]
            yield (metric, l), Value(mean(known) if known and len(known) == len(values) else None, 0)


def activation_mean(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """Mean over batch and units of the block's linear output, layers 1 … L."""
    for l, values in enumerate(_linear_outputs(setting), start=1):
        yield ("activation_mean", l), _mean(values, len(setting.samples))


def activation_std(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """Its sample standard deviation."""
    for l, values in enumerate(_linear_outputs(setting), start=1):
        middle, n = mean(values), len(values)
        std = norm([value - middle for value in values]) / math.sqrt(n - 1) if n > 1 else None
        yield ("activation_std", l), Value(std, len(setting.samples))


def _linear_outputs(setting: Setting) -> list[list[float]]:
    of_samples = [[entries(z) for z, _ in s.linear()] for s in setting.samples]
    return [[value for z in of_layer for value in z] for of_layer in zip(*of_samples, strict=True)]


def preact_grad_norm(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """‖∂(mean loss)/∂(linear output)‖ over the whole batch, layers 1 … L."""
    n = len(setting.samples)
    of_samples = [[entries(slope) for _, slope in s.linear()] for s in setting.samples]
    for l, of_layer in enumerate(zip(*of_samples, strict=True), start=1):
        yield ("preact_grad_norm", l), Value(norm([value / n for slope in of_layer for value in slope]), n)


def trace(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """Every unit of the first probe sample at every layer."""
    for l, h in enumerate(setting.samples[0].states):
        for unit, value in enumerate(entries(h)):
            yield (f"state[{unit}]", l), Value(value, 1)


def evaluation(setting: Setting) -> Iterator[tuple[Key, Value]]:
    """Mean loss and accuracy over the whole test set."""
    losses, right, undecided = [], 0, 0
    for x, y in setting.some(0, setting.test_samples):
        with torch.no_grad():
            z = forward(setting.net, x[None])
        losses.append(setting.loss(z, y).item())
        if setting.classifies:
            outputs = entries(z)
            right += int(z.argmax()) == int(y)
            highest, second = sorted(outputs, reverse=True)[:2]
            undecided += highest - second < LEAD * max(map(abs, outputs))
    n = len(losses)
    yield ("test_loss", None), Value(mean(losses), n)
    if setting.classifies:
        yield ("test_acc", None), Value(right / n, n, rounding=undecided / n)


def _mean(values: Sequence[float], samples: int) -> Value:
    return Value(mean(values) if values else None, samples, terms=size(values))


def _median(values: Sequence[float]) -> Value:
    return Value(median(values) if finite(values) else None, len(values))


def _median_of_defined(values: Sequence[float]) -> Value:
    return Value(median(values) if values else None, len(values))


DEFINITIONS: dict[str, Definition] = {
    "loss": loss,
    "hidden_norm": hidden_norm,
    "growth": growth,
    "branch_ratio": branch_ratio,
    "branch_cosine": branch_cosine,
    "grad_norm": grad_norm,
    "credit_norm": credit_norm,
    "credit_cosine": credit_cosine,
    "rho": rho,
    "nudge": nudge,
    "cross_batch_cosine": cross_batch_cosine,
    "drift": drift,
    "activation_mean": activation_mean,
    "activation_std": activation_std,
    "preact_grad_norm": preact_grad_norm,
    "trace": trace,
    "weight_alignment": weight_alignment,
}
