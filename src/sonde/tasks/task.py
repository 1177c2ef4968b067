"""The interfaces of a task and of its samples, and samples held in memory.  N samples."""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from sonde.network.losses import CROSS_ENTROPY, Loss
from sonde.store.files import Place


class Data(Protocol):
    """Samples on a device: one epoch of training batches at a time, and a test set in a fixed order."""

    loss: Loss
    train_samples: int
    test_samples: int
    source: dict[str, str] | None  # what the samples were read from; None if the seed determines them

    def steps(self, batch_size: int) -> int:
        """Training batches in one epoch."""
        ...

    def batches(self, batch_size: int, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch; all its randomness comes from `rng`."""
        ...

    def test(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Test samples first … last−1, in file order, without augmentation."""
        ...


class Task(Protocol):
    """A task's configuration.  By default it classifies, and there is nothing to prepare."""

    @property
    def label(self) -> str:
        """The task's name in figures and tables."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        ...

    @property
    def outputs(self) -> int:
        """The size of the network's output: the number of classes, or the size of a target."""
        ...

    @property
    def classifies(self) -> bool:
        """Whether targets are labels 0 … C−1, trained with cross entropy; else the loss is the squared error."""
        return True

    def prepare(self, data_root: Place | None, on_progress: Callable[[int, int], None]) -> None:
        """Do what takes long or may fail, once, before any run starts; `on_progress` is told (done, total)."""
        return

    def load(self, seed: int, data_root: Place | None, device: torch.device, dtype: torch.dtype) -> Data:
        """Load the samples onto the device; all their randomness comes from the seed."""
        ...


class Samples:
    """Samples in memory.  An epoch is a pass over all of them in a new order; the last batch may be smaller."""

    source: dict[str, str] | None = None

    def __init__(self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], loss: Loss = CROSS_ENTROPY) -> None:
        self.loss = loss
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
