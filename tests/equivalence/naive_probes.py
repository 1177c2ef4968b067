"""Every probe as its definition reads: one sample at a time, in float64, with Python's own sums.

Uses none of the package's helpers; a value is (number, samples), and the number is None where it is undefined.
"""

import copy
import math
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sonde.generators import generator
from sonde.network import Network

Found = dict[tuple[str, int | None], tuple[float | None, int]]
SampleLoss = Callable[[Tensor, Tensor], Tensor]


def squared_error(z: Tensor, y: Tensor) -> Tensor:
    return ((z - y) ** 2).sum() / z.numel()


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return torch.log(torch.exp(z - z.max()).sum()) - (z[0, int(y)] - z.max())


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def norm(a: Sequence[float]) -> float:
    return math.sqrt(dot(a, a))


def cosine(a: Sequence[float], b: Sequence[float]) -> float | None:
    return dot(a, b) / (norm(a) * norm(b)) if norm(a) and norm(b) else None


def read(h: Tensor) -> list[float]:
    """Of one sample 1×d the vector; of 1×T×d tokens the first."""
    return h.detach()[0].tolist() if h.ndim == 2 else h.detach()[0, 0].tolist()


def first_linear(block: torch.nn.Module, h: Tensor) -> Tensor:
    """The block's linear output, from the equations of models.md."""
    kind = type(block).__name__
    if kind == "ReluLayer":
        return block.linear(h)  # type: ignore[operator, no-any-return]
    if kind == "PreNormBlock":
        return block.w1(block.ln(h))  # type: ignore[operator, no-any-return]
    if kind == "StudentBlock":
        return block.w1(h)  # type: ignore[operator, no-any-return]
    return block.qkv(block.ln1(h))  # type: ignore[operator, no-any-return]


class Sample:
    """One sample on its own: states, branches, linear outputs, loss, and the gradients by autograd."""

    def __init__(self, net: Network, x: Tensor, y: Tensor, loss: SampleLoss) -> None:
        self.net, self.y, self.sample_loss = net, y, loss
        h = net.embed(x[None]).detach().requires_grad_()
        self.states, self.branches, self.linear = [h], [], []
        for block in net.blocks:
            f = block(h)
            self.branches.append(f)
            self.linear.append(first_linear(block, h))
            h = h + f if net.residual else f
            self.states.append(h)
        self.output = net.readout(h)
        total = loss(self.output, y)
        self.loss = total.item()
        self.gradients = torch.autograd.grad(total, self.states)

    def loss_from(self, layer: int, h: Tensor) -> float:
        for block in list(self.net.blocks)[layer:]:
            h = h + block(h) if self.net.residual else block(h)
        return self.sample_loss(self.net.readout(h), self.y).item()


def linear_gradients(net: Network, x: Tensor, y: Tensor, loss: SampleLoss) -> list[list[float]]:
    """∂ℓ/∂(linear output): the output is replaced by itself, cut from the graph."""
    found = []
    for block in net.blocks:
        linear = next(m for m in block.modules() if isinstance(m, torch.nn.Linear))
        caught = []

        def cut(_m: object, _i: object, out: Tensor, caught: list[Tensor] = caught) -> Tensor:
            caught.append(out.detach().requires_grad_())
            return caught[0]

        handle = linear.register_forward_hook(cut)
        total = loss(net(x[None]), y)
        handle.remove()
        found.append(torch.autograd.grad(total, caught[0])[0].flatten().tolist())
    return found


def output_error(s: Sample) -> list[float]:
    """∂ℓ/∂z."""
    z = s.output.detach()[0].tolist()
    if s.sample_loss is squared_error:
        return [2 * (a - t) / len(z) for a, t in zip(z, s.y.tolist(), strict=True)]
    total = math.fsum(math.exp(a - max(z)) for a in z)
    return [math.exp(a - max(z)) / total - (c == int(s.y)) for c, a in enumerate(z)]


def fresh_matrices(like: list[Tensor], rng: torch.Generator) -> list[Tensor]:
    """DFA's matrices drawn anew: N(0, 1/C)."""
    return [torch.randn(b.shape, generator=rng) * b.shape[1] ** -0.5 for b in like]


def mean_cosine(credits: list[Tensor], samples: list[Sample], l: int) -> tuple[float | None, int]:
    cosines = [cosine(read(a), read(s.gradients[l])) for a, s in zip(credits, samples, strict=True)]
    defined = [c for c in cosines if c is not None]
    return (statistics.fmean(defined) if defined else None), len(defined)


def over_draws(metric: str, l: int, drawn: list[tuple[float | None, int]]) -> Found:
    """Mean and spread of the draws that have a value."""
    values = [value for value, _ in drawn if value is not None]
    if not values:
        return {(f"{metric}/null", l): (None, 0), (f"{metric}/null_std", l): (None, 0)}
    used = min(n for value, n in drawn if value is not None)
    spread = statistics.stdev(values), len(values)
    return {(f"{metric}/null", l): (statistics.fmean(values), used), (f"{metric}/null_std", l): spread}


def feedback_credit(samples: list[Sample], matrices: list[Tensor]) -> list[list[Tensor]]:
    """DFA's a_l = e B_lᵀ of every layer and sample; each of T tokens gets it divided by √T."""
    credits = []
    for layer, b in enumerate(matrices):
        of_layer = []
        for s in samples:
            e = output_error(s)
            a = torch.tensor([[dot(e, row) for row in b.double().tolist()]], dtype=torch.float64)
            h = s.states[layer]
            of_layer.append(
                a if h.ndim == 2 else (a / math.sqrt(h.shape[1]))[:, None].repeat(1, h.shape[1], 1)
            )
        credits.append(of_layer)
    return credits


def naive(
    net: Network,
    x_N: Tensor,
    y_N: Tensor,
    loss: SampleLoss,
    *,
    matrices: list[Tensor],
    initial: dict[str, Tensor],
    test: tuple[Tensor, Tensor],
    seed: int,
    epoch: int,
    directions: int,
    draws: int,
    etas: Sequence[float],
) -> Found:
    net = copy.deepcopy(net).double().eval()
    x_N, y_N = x_N.double(), y_N.double() if y_N.is_floating_point() else y_N
    samples = [Sample(net, x, y, loss) for x, y in zip(x_N, y_N, strict=True)]
    n, depth = len(samples), len(net.blocks)
    found: Found = {("loss", None): (statistics.fmean(s.loss for s in samples), n)}
    candidates = {
        "": feedback_credit(samples, matrices),
        "/bp": [[s.gradients[l] for s in samples] for l in range(depth + 1)],
    }
    chance = [
        feedback_credit(samples, fresh_matrices(matrices, generator(seed, f"probe/null/{epoch}/{k}")))
        for k in range(draws)
    ]
    rng = generator(seed, f"probe/null/{epoch}")
    random = [
        [a[None] for a in torch.randn(n, *samples[0].states[l].shape[1:], generator=rng).double()]
        for l in range(depth + 1)
    ]
    for l in range(depth + 1):
        found["hidden_norm", l] = statistics.median(norm(read(s.states[l])) for s in samples), n
        found["grad_norm", l] = statistics.median(norm(read(s.gradients[l])) for s in samples), n
        found["credit_norm", l] = statistics.median(norm(read(a)) for a in candidates[""][l]), n
        for unit, value in enumerate(samples[0].states[l].flatten().tolist()):
            found[f"state[{unit}]", l] = value, 1
        for ending, credits in candidates.items():
            found[f"credit_cosine{ending}", l] = mean_cosine(credits[l], samples, l)
        found |= over_draws("credit_cosine", l, [mean_cosine(credits[l], samples, l) for credits in chance])
        for ending, credits in {**candidates, "/null": random}.items():
            entries = [value for a in credits[l] for value in a.flatten().tolist()]
            rms = math.sqrt(math.fsum(value * value for value in entries) / len(entries))
            for eta in etas:
                changes = [
                    s.loss_from(l, s.states[l] - eta * a / (rms + 1e-6)) - s.loss
                    for a, s in zip(credits[l], samples, strict=True)
                ]
                found[f"nudge[{eta:g}]{ending}", l] = statistics.fmean(changes), n
    for l in range(depth):
        below, above = found["hidden_norm", l][0], found["hidden_norm", l + 1][0]
        found["growth", l] = (above / below if below else None), n  # type: ignore[operator]
        pairs = [(read(s.branches[l]), read(s.states[l])) for s in samples] if net.residual else []
        ratios = [norm(f) / norm(h) for f, h in pairs if norm(h)]
        cosines = [c for f, h in pairs if (c := cosine(f, h)) is not None]
        found["branch_ratio", l] = (statistics.median(ratios) if ratios else None), len(ratios)
        found["branch_cosine", l] = (statistics.median(cosines) if cosines else None), len(cosines)
        values = [value for s in samples for value in s.linear[l].flatten().tolist()]
        found["activation_mean", l + 1] = statistics.fmean(values), n
        found["activation_std", l + 1] = statistics.stdev(values), n
    slopes = [linear_gradients(net, x, y, loss) for x, y in zip(x_N, y_N, strict=True)]
    for l in range(depth):
        found["preact_grad_norm", l + 1] = norm([value / n for s in slopes for value in s[l]]), n
    found |= naive_rho(samples, candidates, chance, directions, generator(seed, f"probe/rho/{epoch}"))
    ratios = [norm(read(s.gradients[-1])) / norm(output_error(s)) for s in samples]
    found["grad_per_error", depth] = statistics.median(ratios), n
    for name, p in net.named_parameters():
        start, end = initial[name].double().flatten().tolist(), p.flatten().tolist()
        moved = norm([a - b for a, b in zip(end, start, strict=True)])
        found[f"drift[{name}]", None] = (moved / norm(start) if norm(start) else None), 0
    found["cross_batch_cosine", depth // 2] = naive_cross_batch(net, *test, loss)
    return found


def naive_rho(
    samples: list[Sample],
    candidates: dict[str, list[list[Tensor]]],
    chance: list[list[list[Tensor]]],
    directions: int,
    rng: torch.Generator,
) -> Found:
    found: Found = {}
    candidates = candidates | {f"/null/{k}": credits for k, credits in enumerate(chance)}
    for l in range(len(samples[0].states)):
        predicted: dict[str, list[float]] = {ending: [] for ending in candidates}
        true: list[float] = []
        width = samples[0].states[l].shape[-1]
        for _ in range(directions):
            v_Nd = torch.randn(len(samples), width, generator=rng).double().tolist()
            for i, s in enumerate(samples):
                epsilon = 1e-3 * norm(read(s.states[l])) / math.sqrt(width)
                step = [epsilon * value / norm(v_Nd[i]) for value in v_Nd[i]]
                h = s.states[l].detach().clone()
                (h[0] if h.ndim == 2 else h[0, 0]).add_(torch.tensor(step, dtype=torch.float64))
                true.append(s.loss_from(l, h) - s.loss)
                for ending, credits in candidates.items():
                    predicted[ending].append(dot(read(credits[l][i]), step))
        drawn = []
        for ending in candidates:
            value = statistics.correlation(predicted[ending], true), len(samples)
            if ending.startswith("/null"):
                drawn.append(value)
            else:
                found[f"rho{ending}", l] = value
        found |= over_draws("rho", l, drawn)
    return found


def naive_cross_batch(net: Network, x_N: Tensor, y_N: Tensor, loss: SampleLoss) -> tuple[float, int]:
    """Mean pairwise cosine of the mean gradients of disjoint batches of 128."""
    layer, means = len(net.blocks) // 2, []
    for first in range(0, len(x_N) - 127, 128):
        gradients = []
        for x, y in zip(x_N[first : first + 128].double(), y_N[first : first + 128], strict=True):
            sample = Sample(net, x, y.double() if y.is_floating_point() else y, loss)
            gradients.append(read(sample.gradients[layer]))
        means.append([math.fsum(column) / 128 for column in zip(*gradients, strict=True)])
    pairs = [cosine(means[i], means[j]) for i in range(len(means)) for j in range(i)]
    return statistics.fmean(p for p in pairs if p is not None), 128 * len(means)
