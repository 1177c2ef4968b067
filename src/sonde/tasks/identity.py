"""Learn the identity: the target is the input.  N samples, d width."""

from collections.abc import Callable, Iterator
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from sonde.core.generators import generator
from sonde.core.validated import validated
from sonde.network.losses import MEAN_SQUARED_ERROR, Loss
from sonde.store.files import Place
from sonde.tasks.task import Data


@validated
class Identity:
    """X ~ U(−1, 1), Y = X, mean squared error.

    Batches are drawn with replacement, so an epoch is `steps_per_epoch` batches rather than a pass over the
    samples.
    """

    d: Annotated[int, Ge(1)] = 64
    samples: Annotated[int, Ge(1)] = 1024
    test_samples: Annotated[int, Ge(1)] = 256
    steps_per_epoch: Annotated[int, Ge(1)] = 50

    label: ClassVar[str] = "identity"
    classifies: ClassVar[bool] = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.d,)

    @property
    def outputs(self) -> int:
        return self.d

    def prepare(self, data_root: Place | None, on_progress: Callable[[int, int], None]) -> None:
        """Nothing to do: the samples are generated."""

    def load(self, seed: int, data_root: Place | None, device: torch.device, dtype: torch.dtype) -> Data:
        def uniform_Nd(samples: int, name: str) -> Tensor:
            rng = generator(seed, f"identity/{name}")
            return (torch.rand(samples, self.d, generator=rng) * 2 - 1).to(device, dtype)

        return IdentityData(uniform_Nd(self.samples, "train"), uniform_Nd(self.test_samples, "test"), self)


class IdentityData:
    loss: Loss = MEAN_SQUARED_ERROR
    source: dict[str, str] | None = None

    def __init__(self, train_Nd: Tensor, test_Nd: Tensor, task: Identity) -> None:
        self.train_samples, self.test_samples = task.samples, task.test_samples
        self.train_x, self.test_x = train_Nd, test_Nd
        self._steps = task.steps_per_epoch

    def steps(self, batch_size: int) -> int:
        return self._steps

    def batches(self, batch_size: int, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        drawn = torch.randint(self.train_samples, (self._steps, batch_size), generator=rng)
        for chosen in drawn.to(self.train_x.device):
            x_Nd = self.train_x[chosen]
            yield x_Nd, x_Nd

    def test(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        x_Nd = self.test_x[first:last]
        return x_Nd, x_Nd
