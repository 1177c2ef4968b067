"""What every model's configuration provides, and the layers that several networks share."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from sonde.network import Network, Signature


class Model(Protocol):
    """A network's configuration: it has a label and builds the network from a generator."""

    @property
    def label(self) -> str:
        """The model's name in figures and tables."""
        ...

    @property
    def variant(self) -> str | None:
        """`raw` or `scaled` for the networks of the residual study, by the scale of their weights; None for others."""
        ...

    @property
    def d(self) -> int:
        """The width of the states; for maps, the channels of the last one."""
        ...

    @property
    def L(self) -> int:
        """The number of blocks; the states are h_0 … h_L."""
        ...

    @property
    def init_scale(self) -> float | None:
        """The factor on the usual initial weights, for models that have one."""
        ...

    def check(self, signature: Signature) -> None:
        """Raise an error before training if this network does not fit the task."""
        ...

    def build(self, signature: Signature, rng: torch.Generator) -> Network:
        """Build the network for inputs and outputs of this signature; all weights are drawn from `rng`."""
        ...


@contextmanager
def default_init(rng: torch.Generator) -> Iterator[None]:
    """Inside, new modules draw PyTorch's default weights from `rng`; afterwards the global generator is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (1,), generator=rng)))
        yield


class Embedding(nn.Module):
    """Linear map of the flattened input."""

    def __init__(self, shape: tuple[int, ...], d: int) -> None:
        super().__init__()
        self.axes = len(shape)
        self.linear = nn.Linear(math.prod(shape), d)

    def forward(self, x: Tensor) -> Tensor:
        h_Nd: Tensor = self.linear(x.flatten(-self.axes))
        return h_Nd


class Readout(nn.Module):
    """LayerNorm (optional), then a linear head; with `tokens` it reads the first token."""

    def __init__(self, d: int, outputs: int, *, out_ln: bool, tokens: bool = False) -> None:
        super().__init__()
        self.tokens = tokens
        self.out_ln = nn.LayerNorm(d) if out_ln else nn.Identity()
        self.out_head = nn.Linear(d, outputs)

    def forward(self, h: Tensor) -> Tensor:
        z_NC: Tensor = self.out_head(self.out_ln(h[..., 0, :] if self.tokens else h))
        return z_NC
