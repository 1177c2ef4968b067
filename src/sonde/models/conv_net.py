"""A small convolutional network.  N samples, C channels, H×W positions, d width."""

from typing import Annotated, ClassVar, final

import torch
import torch.nn.functional as F  # noqa: N812
from annotated_types import Ge, MinLen
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.validated import validated
from sonde.models.model import Model, Readout, default_init
from sonde.network import Network, Signature


class Convolution(nn.Module):
    """Pool(ReLU(3×3 convolution)): positions are halved in both directions."""

    def __init__(self, below: int, above: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(below, above, 3, padding=1)

    def forward(self, h_NCHW: Tensor) -> Tensor:
        return F.max_pool2d(torch.relu(self.conv(h_NCHW)), 2)


class Hidden(nn.Module):
    """ReLU(linear map of all numbers of a map)."""

    def __init__(self, numbers: int, d: int) -> None:
        super().__init__()
        self.linear = nn.Linear(numbers, d)

    def forward(self, h_NCHW: Tensor) -> Tensor:
        return torch.relu(self.linear(h_NCHW.flatten(1)))


@final
@validated
class ConvNet(Model):
    """Convolutions with pooling, one hidden layer of width `d`, and a linear head.

    After LeCun et al. (1998).  The first convolution is the embedding; every other convolution and the hidden layer
    are units.  The states are maps, and at the end a vector.  PyTorch's default weights.
    """

    channels: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] = (16, 32)
    d: Annotated[int, Ge(1)] = 128

    label: ClassVar[str] = "ConvNet"

    @property
    def L(self) -> int:
        return len(self.channels)

    def check(self, signature: Signature) -> None:
        shape, step = signature.shape, 2**self.L
        if len(shape) != 3:
            raise SondeError(
                f"conv_net takes images, but the task's inputs are {'×'.join(map(str, shape))}: choose digits, parity "
                f"or cifar10, or another model"
            )
        if any(side % step for side in shape[1:]):
            raise SondeError(
                f"{self.L} poolings do not fit images of {shape[1]}×{shape[2]}, whose sides {step} must divide: set "
                f"model.channels to fewer numbers"
            )

    def build(self, signature: Signature, rng: torch.Generator) -> Network:
        self.check(signature)
        colours, height, width = signature.shape
        positions = height * width // 4**self.L
        with default_init(rng):
            stages = [Convolution(a, b) for a, b in zip((colours, *self.channels), self.channels, strict=False)]
            hidden = Hidden(self.channels[-1] * positions, self.d)
            readout = Readout(self.d, signature.outputs, out_ln=False)
        return Network(stages[0], [*stages[1:], hidden], readout, residual=False)
