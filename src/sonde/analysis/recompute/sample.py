"""Inputs of the definitions: plain numbers, one sample, and all inputs of a snapshot.

T tokens, d width, C outputs.  Every tensor has one sample: 1×d, 1×T×d, or a map 1×channels×height×width.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sonde.core.generators import generator
from sonde.network import Network

Numbers = Sequence[float]


class Recomputed(NamedTuple):
    """The number of a metric, None where undefined, and its number of samples.

    `terms` is the mean size of the terms of a mean; rounding is relative to it where they cancel.  `either` marks a
    number at the limit of the arithmetic, which may be stored as undefined.  `rounding` is the effect of rounding,
    where the definition knows it.
    """

    number: float | None
    samples: int
    terms: float = 0.0
    either: bool = False
    rounding: float = 0.0


def finite(values: Numbers) -> bool:
    """Whether all values are finite."""
    return all(map(math.isfinite, values))


def total(values: Numbers) -> float:
    """The sum, rounded once; NaN where a value is not finite."""
    return math.fsum(values) if finite(values) else math.nan


def mean(values: Numbers) -> float:
    """The mean; NaN of no values, and where a value is not finite."""
    return total(values) / len(values) if values else math.nan


def mean_size(values: Numbers) -> float:
    """The mean of the absolute values."""
    return mean([abs(value) for value in values])


def finite_median(values: Numbers) -> float:
    """The median; NaN of no values, and where a value is not finite."""
    return statistics.median(values) if values and finite(values) else math.nan


def norm(a: Numbers) -> float:
    """√Σa², without overflow or underflow."""
    return math.hypot(*a)


def root_mean_square(a: Numbers) -> float:
    """√(Σ a²/n); NaN of no values."""
    return norm(a) / math.sqrt(len(a)) if a else math.nan


def cosine(a: Numbers, b: Numbers) -> float | None:
    """⟨a, b⟩/(‖a‖‖b‖); None where a vector is zero or not finite."""
    lengths = norm(a), norm(b)
    if not all(0 < length < math.inf for length in lengths):
        return None
    return total([(x / lengths[0]) * (y / lengths[1]) for x, y in zip(a, b, strict=True)])


def correlation(x: Numbers, y: Numbers) -> tuple[float, float] | None:
    """Pearson's correlation, and the mean size of the products in it.

    None where one side has no spread beyond the rounding of its largest entry.
    """
    deviations = []
    for values in (x, y):
        largest = max(map(abs, values))
        if not largest > 0:
            return None
        shares = [value / largest for value in values]
        middle = mean(shares)
        centred = [share - middle for share in shares]
        if not root_mean_square(centred) > 4 * math.ulp(1):
            return None
        deviations.append([value / root_mean_square(centred) for value in centred])
    products = [a * b for a, b in zip(*deviations, strict=True)]
    return mean(products), mean_size(products)


SampleLoss = Callable[[Tensor, Tensor], Tensor]


def squared_error(z_KC: Tensor, y: Tensor) -> Tensor:
    """Σ_c (z_c − y_c)²/C of K outputs for one target."""
    return ((z_KC - y) ** 2).sum(-1) / z_KC.shape[-1]


def cross_entropy(z_KC: Tensor, y: Tensor) -> Tensor:
    """log Σ_c exp z_c − z_y of K outputs for one label; the largest output is subtracted first."""
    z_KC = z_KC - z_KC.detach().max(-1, keepdim=True).values
    return torch.log(torch.exp(z_KC).sum(-1)) - z_KC[:, int(y)]


def first_token(h: Tensor) -> Tensor:
    """The vector 1×d of a state: of 1×T×d tokens the first (CLS), of a map all numbers."""
    return h[:, 0] if h.ndim == 3 else h.flatten(1)


def vector_of(h: Tensor) -> list[float]:
    """The entries of the vector that is read of a state."""
    return entries(first_token(h))


def entries(h: Tensor) -> list[float]:
    """All entries of a tensor, as Python floats."""
    found: list[float] = h.detach().flatten().tolist()
    return found


def forward(net: Network, x: Tensor) -> Tensor:
    """The output of a network, block by block."""
    return continued(net, net.embed(net.entered(x)), 0)


def continued(net: Network, h: Tensor, layer: int) -> Tensor:
    """The output of a network from h_l on."""
    for block in list(net.blocks)[layer:]:
        h, _ = advanced(net, block, h)
    z: Tensor = net.readout(net.read(h))
    return z


def advanced(net: Network, block: nn.Module, h: Tensor) -> tuple[Tensor, Tensor]:
    """The next state, and what the block adds to the stream."""
    h = net.read(h)
    f = block(h) * net.branch_scale
    return (h + f if net.residual else f), f


class Sample:
    """h_0 … h_L, the branches between them, the output, its loss, and g_l = ∂ℓ/∂h_l."""

    def __init__(self, net: Network, x: Tensor, y: Tensor, loss: SampleLoss) -> None:
        self.net, self.x, self.y, self.sample_loss = net, x[None], y, loss
        self.batch: list[Sample] = [self]  # the probe batch, in order
        self.place = 0  # its position in the batch
        h = net.embed(net.entered(self.x)).detach().requires_grad_()
        states, branches = [h], []
        for block in net.blocks:
            h, f = advanced(net, block, h)
            branches.append(f)
            states.append(h)
        output = net.readout(net.read(h))
        total = loss(output, y).sum()
        self.loss = total.item()
        self.gradients = list(torch.autograd.grad(total, states))
        self.states: list[Tensor] = [h.detach() for h in states]
        self.branches = [f.detach() for f in branches]
        self.output: Tensor = output.detach()

    @property
    def error(self) -> Tensor:
        """e = ∂ℓ/∂z, 1×C."""
        z_1C = self.output
        if self.sample_loss is squared_error:
            return (z_1C - self.y) * 2 / z_1C.shape[-1]
        powers_1C = torch.exp(z_1C - z_1C.max())
        e_1C = powers_1C / powers_1C.sum()
        e_1C[0, int(self.y)] -= 1
        return e_1C

    def losses_from(self, layer: int, h: Tensor) -> list[float]:
        """The losses of copies of this sample with these values of h_l."""
        with torch.no_grad():
            return entries(self.sample_loss(continued(self.net, h, layer), self.y))

    def moved(self, layer: int, step_d: Tensor) -> Tensor:
        """A copy of h_l with a step added to its vector (`first_token`)."""
        h = self.states[layer].clone()
        first_token(h)[0].add_(step_d)
        return h

    def rms(self, layer: int) -> float:
        """Root mean square of the vector that is read of h_l."""
        vector = vector_of(self.states[layer])
        return norm(vector) / math.sqrt(len(vector))

    def linear(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The detached output of each block's first linear map or convolution, and the gradient at it."""
        for block in self.net.blocks:
            first = next((part for part in block.modules() if isinstance(part, nn.Linear | nn.Conv2d)), None)
            if first is None:
                continue
            caught: list[Tensor] = []

            def cut(_part: object, _in: object, z: Tensor, caught: list[Tensor] = caught) -> Tensor:
                caught.append(z.detach().requires_grad_())
                return caught[0]

            handle = first.register_forward_hook(cut)
            try:
                total = self.sample_loss(forward(self.net, self.x), self.y).sum()
            finally:
                handle.remove()
            (slope,) = torch.autograd.grad(total, caught[0])
            yield caught[0].detach(), slope


SampleCredit = Callable[[Sample], list[Tensor]]
Credits = list[list[Tensor]]
"""Credits by layer, then by sample."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SnapshotInputs:
    """A network in float64 and all other inputs of the definitions."""

    net: Network
    as_trained: Callable[[Network], Network]  # the same network in the arithmetic of training
    classifies: bool
    test: Callable[[int, int], tuple[Tensor, Tensor]]  # test samples first … last−1
    test_samples: int
    size: int  # of the probe batch
    seed: int
    epoch: int
    directions: int  # of rho
    draws: int  # of the null of cosine and rho
    epsilon: float | None  # of rho; None: 1e-3 × RMS(h_l) of each sample
    etas: Sequence[float]  # of nudge
    credit: SampleCredit | None = None  # the rule's a_0 … a_L
    redrawn: Callable[[torch.Generator], SampleCredit] | None = None  # the credit after the rule's state is drawn again
    feedback: Mapping[str, Tensor] | None = None  # V by the name of the weight W that it replaces
    initial: Mapping[str, Tensor] | None = None  # the weights at initialisation
    predict: Callable[[Network, Tensor], Tensor] = forward  # the output that test loss and accuracy are measured with

    @property
    def loss(self) -> SampleLoss:
        """The loss of one sample: cross-entropy of classes, squared error otherwise."""
        return cross_entropy if self.classifies else squared_error

    def some(self, first: int, last: int) -> list[tuple[Tensor, Tensor]]:
        """Test samples in file order, in float64."""
        x_N, y_N = self.test(first, min(last, self.test_samples))
        return list(zip(x_N.double(), y_N if self.classifies else y_N.double(), strict=True))

    @cached_property
    def samples(self) -> list[Sample]:
        """The probe batch: the first test samples."""
        found = [Sample(self.net, x, y, self.loss) for x, y in self.some(0, self.size)]
        for place, sample in enumerate(found):
            sample.batch, sample.place = found, place
        return found

    @cached_property
    def rounded(self) -> list[Sample]:
        """The probe batch in the arithmetic of training."""
        net = self.as_trained(self.net)
        dtype = next(net.parameters()).dtype
        return [
            Sample(net, x.to(dtype), y if self.classifies else y.to(dtype), self.loss)
            for x, y in self.some(0, self.size)
        ]

    @property
    def depth(self) -> int:
        """The number of blocks, L."""
        return len(self.net.blocks)

    @cached_property
    def credits(self) -> Credits | None:
        """a_0 … a_L of the rule; None where its state is not known."""
        if self.credit is None:
            return None
        return _by_layer([self.credit(sample) for sample in self.samples])

    @cached_property
    def candidates(self) -> dict[str, Credits | None]:
        """The rule's credit and its ceiling, by the suffix of their metrics."""
        return {"": self.credits, "/bp": _by_layer([sample.gradients for sample in self.samples])}

    @cached_property
    def chance(self) -> list[Credits]:
        """The null: credits whose state is drawn again, or random vectors for rules without a state."""
        return [self._drawn(generator(self.seed, f"probe/null/{self.epoch}/{k}")) for k in range(self.draws)]

    def _drawn(self, rng: torch.Generator) -> Credits:
        if self.redrawn is not None:
            credit = self.redrawn(rng)
            return _by_layer([[first_token(a) for a in credit(sample)] for sample in self.samples])
        states = [first_token(h) for h in self.samples[0].states]
        return normal(len(self.samples), states, rng)

    def rng(self, purpose: str) -> torch.Generator:
        """The generator from which the probes of this epoch draw for one purpose."""
        return generator(self.seed, f"probe/{purpose}/{self.epoch}")


def normal(samples: int, states: Sequence[Tensor], rng: torch.Generator) -> Credits:
    """Normal numbers in the shape of every state, drawn by layer for all samples at once."""
    drawn = [torch.randn(samples, *h.shape[1:], generator=rng).double() for h in states]
    return [[a[None] for a in of_layer] for of_layer in drawn]


def _by_layer(of_samples: Sequence[Sequence[Tensor]]) -> Credits:
    return [list(of_layer) for of_layer in zip(*of_samples, strict=True)]
