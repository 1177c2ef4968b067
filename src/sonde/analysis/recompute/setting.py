"""What a snapshot of a run is computed from, one sample at a time: the network, the probe batch, the rule's credit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sonde.analysis.recompute.sample import Sample, SampleLoss, cross_entropy, first_token, squared_error
from sonde.core.generators import generator
from sonde.network import Network

Credit = Callable[[Sample], list[Tensor]]
Credits = list[list[Tensor]]
"""Of every layer, and there of every sample."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """A network in float64 and what its definitions need beside it."""

    net: Network
    as_trained: Callable[[Network], Network]  # the same network in the arithmetic of training
    classifies: bool
    test: Callable[[int, int], tuple[Tensor, Tensor]]  # test samples first … last−1
    test_samples: int
    size: int  # of the probe batch
    seed: int
    epoch: int
    directions: int  # of rho
    draws: int  # of chance, for cosine and rho
    epsilon: float | None  # of rho; None: 1e-3 × RMS(h_l) of each sample
    etas: Sequence[float]  # of nudge
    credit: Credit | None = None  # the rule's a_0 … a_L
    redrawn: Callable[[torch.Generator], Credit] | None = None  # the same had the rule drawn anew, if it draws
    feedback: Mapping[str, Tensor] | None = None  # V by the name of the weight that it replaces
    initial: Mapping[str, Tensor] | None = None  # the weights at initialisation

    @property
    def loss(self) -> SampleLoss:
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
        return len(self.net.blocks)

    @cached_property
    def credits(self) -> Credits | None:
        """a_0 … a_L of the rule; None where its state is not known."""
        if self.credit is None:
            return None
        return _by_layer([self.credit(sample) for sample in self.samples])

    @cached_property
    def candidates(self) -> dict[str, Credits | None]:
        """The rule's credit and its ceiling, by the ending of their metrics' names."""
        return {"": self.credits, "/bp": _by_layer([sample.gradients for sample in self.samples])}

    @cached_property
    def chance(self) -> list[Credits]:
        """What chance sends in credit's place, drawn as the rule draws; the vectors that are read, one a sample."""
        return [self._drawn(generator(self.seed, f"probe/null/{self.epoch}/{k}")) for k in range(self.draws)]

    def _drawn(self, rng: torch.Generator) -> Credits:
        if self.redrawn is not None:
            credit = self.redrawn(rng)
            return _by_layer([[first_token(a) for a in credit(sample)] for sample in self.samples])
        states = [first_token(h) for h in self.samples[0].states]
        return normal(len(self.samples), states, rng)

    def rng(self, purpose: str) -> torch.Generator:
        return generator(self.seed, f"probe/{purpose}/{self.epoch}")


def normal(samples: int, states: Sequence[Tensor], rng: torch.Generator) -> Credits:
    """Normal numbers in the shape of every state, drawn layer by layer for all samples at once."""
    drawn = [torch.randn(samples, *h.shape[1:], generator=rng).double() for h in states]
    return [[a[None] for a in of_layer] for of_layer in drawn]


def _by_layer(of_samples: Sequence[Sequence[Tensor]]) -> Credits:
    return [list(of_layer) for of_layer in zip(*of_samples, strict=True)]
