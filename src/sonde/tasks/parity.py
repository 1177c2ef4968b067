"""Are the chosen bits odd or even in number?  N samples, b bits."""

import math
from collections.abc import Callable
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.core.validated import validated
from sonde.store.files import Place
from sonde.tasks.samples import Samples
from sonde.tasks.task import Data


@validated
class Parity:
    """X uniform in {−1, 1}^bits, Y whether an odd number of the first `relevant` bits is −1, cross entropy.

    No smaller set of bits says anything about Y, so a network must combine the relevant ones, which a readout of
    random features cannot at this size: depth is what is learned.  A square number of bits is an image of one
    channel.
    """

    bits: Annotated[int, Ge(1)] = 16
    relevant: Annotated[int, Ge(1)] = 4
    samples: Annotated[int, Ge(1)] = 8_000
    test_samples: Annotated[int, Ge(1)] = 2_000

    label: ClassVar[str] = "parity"
    outputs: ClassVar[int] = 2
    classifies: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, ...]:
        side = math.isqrt(self.bits)
        return (1, side, side) if side * side == self.bits else (self.bits,)

    def prepare(self, data_root: Place | None, on_progress: Callable[[int, int], None]) -> None:
        """Nothing to do: the samples are generated."""
        self._refuse_nonsense()

    def load(self, seed: int, data_root: Place | None, device: torch.device, dtype: torch.dtype) -> Data:
        self._refuse_nonsense()

        def split(samples: int, name: str) -> tuple[Tensor, Tensor]:
            rng = generator(seed, f"parity/{name}")
            bits_Nb = torch.randint(2, (samples, self.bits), generator=rng)
            x = (1 - 2 * bits_Nb).view(samples, *self.shape)
            return x.to(device, dtype), (bits_Nb[:, : self.relevant].sum(-1) % 2).to(device)

        return Samples(split(self.samples, "train"), split(self.test_samples, "test"))

    def _refuse_nonsense(self) -> None:
        if self.relevant > self.bits:
            raise SondeError(f"task.relevant = {self.relevant} of task.bits = {self.bits}: choose at most {self.bits}")
