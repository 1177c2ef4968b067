"""A classification set held in memory.  N samples."""

from collections.abc import Iterator

import torch
from torch import Tensor

from sonde.network.losses import CROSS_ENTROPY, Loss


class Samples:
    """Every epoch is a pass over all training samples in a new order; the last batch may be smaller."""

    loss: Loss = CROSS_ENTROPY
    source: dict[str, str] | None = None

    def __init__(self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> None:
        (self.train_x, self.train_y), (self.test_x, self.test_y) = train, test
        self.train_samples, self.test_samples = len(self.train_x), len(self.test_x)

    def steps(self, batch_size: int) -> int:
        return -(-self.train_samples // batch_size)

    def batches(self, batch_size: int, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        order_N = torch.randperm(self.train_samples, generator=rng).to(self.train_x.device)
        for first in range(0, self.train_samples, batch_size):
            chosen = order_N[first : first + batch_size]
            yield self.train_x[chosen], self.train_y[chosen]

    def test(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        return self.test_x[first:last], self.test_y[first:last]
