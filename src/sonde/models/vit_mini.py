"""A small vision transformer.  N samples, T tokens, d width, H heads, p patch side."""

import math
from typing import Annotated, ClassVar, final

import torch
import torch.nn.functional as F  # noqa: N812
from annotated_types import Ge
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.validated import validated
from sonde.models.model import Model, Readout, default_init
from sonde.network import Network, Signature
from sonde.network.pooling import PoolingName


class PatchEmbedding(nn.Module):
    """p×p patches (or runs of p² numbers, where the input is no image) → Linear → + positions; CLS token first."""

    def __init__(self, shape: tuple[int, ...], p: int, d: int) -> None:
        super().__init__()
        self.shape, self.p = shape, p
        patches, numbers = patching(shape, p)
        self.linear = nn.Linear(numbers, d)
        self.cls = nn.Parameter(torch.randn(d) * 0.02)
        self.positions = nn.Parameter(torch.randn(patches + 1, d) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        if len(self.shape) == 3:
            patches = F.unfold(x, self.p, stride=self.p).transpose(1, 2)
        else:
            patches = x.unflatten(1, (-1, self.p**2))  # type: ignore[no-untyped-call]
        tokens_NTd = self.linear(patches)
        cls_N1d = self.cls.expand(len(x), 1, -1)
        return torch.cat([cls_N1d, tokens_NTd], dim=1) + self.positions


def patching(shape: tuple[int, ...], p: int) -> tuple[int, int]:
    """How many patches an input has, and how many numbers each holds."""
    if len(shape) == 3:
        channels, height, width = shape
        return (height // p) * (width // p), channels * p * p
    return math.prod(shape) // p**2, p**2


class TransformerBlock(nn.Module):
    """Pre-norm attention, then a pre-norm MLP, both residual; returns what the block adds to h."""

    def __init__(self, d: int, heads: int, ratio: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.w1, self.w2 = nn.Linear(d, ratio * d), nn.Linear(ratio * d, d)

    def forward(self, h_NTd: Tensor) -> Tensor:
        attended_NTd = self._attend(self.ln1(h_NTd))
        changed_NTd: Tensor = self.w2(F.gelu(self.w1(self.ln2(h_NTd + attended_NTd))))
        return attended_NTd + changed_NTd

    def _attend(self, h_NTd: Tensor) -> Tensor:
        q, k, v = self.qkv(h_NTd).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed_NTd: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return mixed_NTd


@final
@validated
class VitMini(Model):
    """Patches, a CLS token, pre-norm transformer blocks, and a head on the CLS token.

    Dosovitskiy et al. (2021), arXiv:2010.11929, at a size for laptops.
    """

    d: Annotated[int, Ge(1)] = 128
    L: Annotated[int, Ge(1)] = 4
    heads: Annotated[int, Ge(1)] = 4
    patch: Annotated[int, Ge(1)] = 4
    mlp_ratio: Annotated[int, Ge(1)] = 2
    out_ln: bool = True

    pooling: ClassVar[PoolingName] = "cls"

    @property
    def label(self) -> str:
        return "ViT-Mini" if self.out_ln else "ViT-Mini, no terminal LN"

    def check(self, signature: Signature) -> None:
        if self.d % self.heads:
            raise SondeError(
                f"model.heads = {self.heads} does not divide model.d = {self.d}: choose a divisor of {self.d}"
            )
        shape = signature.shape
        sides = shape[1:] if len(shape) == 3 else (math.prod(shape),)
        step = self.patch if len(shape) == 3 else self.patch**2
        if any(side % step for side in sides):
            raise SondeError(
                f"model.patch = {self.patch} does not fit inputs of shape {'×'.join(map(str, shape))}: choose a patch "
                f"whose {'side' if len(shape) == 3 else 'square'} divides {' and '.join(map(str, sides))}"
            )

    def build(self, signature: Signature, rng: torch.Generator) -> Network:
        self.check(signature)
        with default_init(rng):
            embed = PatchEmbedding(signature.shape, self.patch, self.d)
            blocks = [TransformerBlock(self.d, self.heads, self.mlp_ratio) for _ in range(self.L)]
            readout = Readout(self.d, signature.outputs, out_ln=self.out_ln, tokens=True)
        return Network(embed, blocks, readout, residual=True, pooling=self.pooling)
