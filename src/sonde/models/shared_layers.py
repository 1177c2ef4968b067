"""Parts that several networks share, and PyTorch's default initialisation from a generator of one's own."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def default_init(rng: torch.Generator) -> Iterator[None]:
    """Modules built inside draw PyTorch's default weights from `rng`; the global generator is put back."""
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
    """LayerNorm (optional), then a linear head; of tokens, the first is read."""

    def __init__(self, d: int, outputs: int, *, out_ln: bool, tokens: bool = False) -> None:
        super().__init__()
        self.tokens = tokens
        self.out_ln = nn.LayerNorm(d) if out_ln else nn.Identity()
        self.out_head = nn.Linear(d, outputs)

    def forward(self, h: Tensor) -> Tensor:
        z_NC: Tensor = self.out_head(self.out_ln(h[..., 0, :] if self.tokens else h))
        return z_NC
