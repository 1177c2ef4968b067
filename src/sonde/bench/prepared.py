"""Batches that lie ready: a task of noise, to time steps and nothing else."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sonde.config import RunConfig
from sonde.generators import generator
from sonde.losses import CROSS_ENTROPY, Loss
from sonde.models import Model
from sonde.rules import Rule
from sonde.store.place import Place
from sonde.tasks import Data
from sonde.training.program import Program

BATCH = 128
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Normal inputs of some shape with labels at random; every epoch is the same batches in the same order."""

    shape: tuple[int, ...] = (3, 32, 32)
    steps: int = 1
    outputs: int = 10

    label: ClassVar[str] = "noise"
    classifies: ClassVar[bool] = True

    def prepare(self, data_root: Place | None, on_progress: Callable[[int, int], None]) -> None:
        """Nothing to do: the samples are generated."""

    def load(self, seed: int, data_root: Place | None, device: torch.device, dtype: torch.dtype) -> Data:
        rng = generator(seed, "noise")
        x = torch.randn(self.steps, BATCH, *self.shape, generator=rng).to(device, dtype)
        y = torch.randint(self.outputs, (self.steps, BATCH), generator=rng).to(device)
        return Prepared(list(zip(x, y, strict=True)))


class Prepared:
    """The batches of an epoch, held as they are."""

    loss: Loss = CROSS_ENTROPY
    source: dict[str, str] | None = None

    def __init__(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        self.ready = batches
        self.train_samples = sum(len(y) for _, y in batches)
        self.test_samples = len(batches[0][1])

    def steps(self, batch_size: int) -> int:
        return len(self.ready)

    def batches(self, batch_size: int, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.ready)

    def test(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        x, y = self.ready[0]
        return x[first:last], y[first:last]


def program(model: Model, rule: Rule, noise: Noise) -> Program:
    """A run over noise."""
    config = RunConfig(model=model, rule=rule, task=noise, batch_size=BATCH)
    return Program(config, noise.load(config.seed, None, CPU, torch.float32), CPU)
