"""What training and probes need of a data set, whatever it was made from."""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from sonde.network.losses import Loss
from sonde.store.files import Place


class Data(Protocol):
    """Samples on a device: one epoch of training batches at a time, and a test set in a fixed order."""

    loss: Loss
    train_samples: int
    test_samples: int
    source: dict[str, str] | None  # what the samples were read from; None where the seed says it all

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
    """A task's configuration."""

    @property
    def label(self) -> str:
        """What it is called in figures and tables."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        ...

    @property
    def outputs(self) -> int:
        """How many numbers a network answers with: classes, or the size of a target."""
        ...

    @property
    def classifies(self) -> bool:
        """Whether targets are labels 0 … C−1, trained with cross entropy; else numbers, with the squared error."""
        ...

    def prepare(self, data_root: Place | None, on_progress: Callable[[int, int], None]) -> None:
        """Do once, before any run starts, what takes long or may fail; says how much of how much is done."""
        ...

    def load(self, seed: int, data_root: Place | None, device: torch.device, dtype: torch.dtype) -> Data:
        """The samples, on the device; what is random in them follows from the seed alone."""
        ...
