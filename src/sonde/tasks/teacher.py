"""Learn what a random network computes.  N samples, i inputs, d width, C classes."""

from collections.abc import Callable
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from sonde.core.generators import generator
from sonde.core.validated import validated
from sonde.store.files import Place
from sonde.tasks.samples import Samples
from sonde.tasks.task import Data


@validated
class Teacher:
    """X ~ N(0, 1), Y = argmax of a random residual network, cross entropy.

    The teacher is a `student_net` with weights of its own and no biases:  h_0 = W_e x,
    h_{l+1} = h_l + W_2 φ_α(W_1 h_l),  φ_α(z) = (1−α)z + α·tanh(z),  Y = argmax W_h h_L.
    Inputs and teacher are drawn from the run's seed.  With α = 0 the teacher is linear.
    """

    inputs: Annotated[int, Ge(1)] = 128
    classes: Annotated[int, Ge(2)] = 10
    samples: Annotated[int, Ge(1)] = 10_000
    test_samples: Annotated[int, Ge(1)] = 2_000
    alpha: Annotated[float, Ge(0), Le(1)] = 1.0
    L: Annotated[int, Ge(0)] = 4
    d: Annotated[int, Ge(1)] = 128

    label: ClassVar[str] = "teacher"
    classifies: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.inputs,)

    @property
    def outputs(self) -> int:
        return self.classes

    def prepare(self, data_root: Place | None, on_progress: Callable[[int, int], None]) -> None:
        """Nothing to do: the samples are generated."""

    def load(self, seed: int, data_root: Place | None, device: torch.device, dtype: torch.dtype) -> Data:
        def split(samples: int, name: str) -> tuple[Tensor, Tensor]:
            x_Ni = torch.randn(samples, self.inputs, generator=generator(seed, f"teacher/{name}"))
            return x_Ni.to(device, dtype), self.logits(x_Ni, seed).argmax(-1).to(device)

        return Samples(split(self.samples, "train"), split(self.test_samples, "test"))

    def logits(self, x_Ni: Tensor, seed: int) -> Tensor:
        """The teacher's outputs, in float64 so that labels are the same for every precision of a run."""

        def uniform(rows: int, columns: int, name: str) -> Tensor:
            rng = generator(seed, f"teacher/{name}")
            bound = columns**-0.5  # PyTorch's default for a linear layer
            return torch.empty(rows, columns, dtype=torch.float64).uniform_(-bound, bound, generator=rng)

        def normal_dd(std: float, name: str) -> Tensor:
            rng = generator(seed, f"teacher/{name}")
            return torch.randn(self.d, self.d, generator=rng, dtype=torch.float64) * std

        h_Nd = x_Ni.double() @ uniform(self.d, self.inputs, "embed").T
        for block in range(self.L):
            z_Nd = h_Nd @ normal_dd(self.d**-0.5, f"blocks.{block}.w1").T
            z_Nd = (1 - self.alpha) * z_Nd + self.alpha * z_Nd.tanh()
            h_Nd = h_Nd + z_Nd @ normal_dd((self.d * self.L) ** -0.5, f"blocks.{block}.w2").T
        return h_Nd @ uniform(self.classes, self.d, "head").T
