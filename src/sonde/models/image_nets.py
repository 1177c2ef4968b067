"""Networks for images: a small ConvNet, the residual network of CIFAR-10, and a small vision transformer.

N samples, C channels, H×W positions; T tokens, d width, p patch side.
"""

import math
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, final

import torch
import torch.nn.functional as F  # noqa: N812
from annotated_types import Ge, MinLen
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.validated import validated
from sonde.models.model import Model, Readout, default_init
from sonde.network import Network, PoolingName, Signature


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


NormKind = Literal["batch", "group"]
GROUPS = 8


class Stem(nn.Module):
    """ReLU(norm(3×3 convolution))."""

    def __init__(self, colours: int, channels: int, norm: NormKind) -> None:
        super().__init__()
        self.conv = nn.Conv2d(colours, channels, 3, padding=1, bias=False)
        self.norm = _make_norm(norm, channels)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


class BasicBlock(nn.Module):
    """ReLU(shortcut(h) + norm(conv(ReLU(norm(conv(h)))))).

    Where positions are halved and channels doubled, the shortcut takes every second position and fills up with zeros.
    """

    def __init__(self, below: int, above: int, norm: NormKind) -> None:
        super().__init__()
        self.stride = 1 if below == above else 2
        self.more = above - below
        self.conv1 = nn.Conv2d(below, above, 3, stride=self.stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(above, above, 3, padding=1, bias=False)
        self.norm1, self.norm2 = _make_norm(norm, above), _make_norm(norm, above)

    def forward(self, h: Tensor) -> Tensor:
        f = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(h)))))
        if self.stride == 2:
            h = F.pad(h[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.more))
        return torch.relu(h + f)


class PooledReadout(nn.Module):
    """Linear map of the mean over positions."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.out_head = nn.Linear(channels, outputs)

    def forward(self, h_NCHW: Tensor) -> Tensor:
        z_NC: Tensor = self.out_head(h_NCHW.mean((2, 3)))
        return z_NC


def _make_norm(norm: NormKind, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(min(GROUPS, channels), channels)


@final
@validated
class ResNet(Model):
    """The ResNet-(6n+2) of He et al. (2016), arXiv:1512.03385: three stages of `n` basic blocks, each a unit.

    The first stage has `d` channels; each further one doubles them and halves the positions.  `n` = 1 is ResNet-8,
    3 ResNet-20.  Convolutions are initialised as in the paper (Kaiming normal, fan-out).  With `norm: batch` the batch
    statistics come from the same forward pass for every rule, and a unit's norm layers learn from the unit's credit;
    `group` has no batch statistics.
    """

    n: Annotated[int, Ge(1)] = 1
    d: Annotated[int, Ge(1)] = 16
    norm: NormKind = "batch"

    @property
    def L(self) -> int:
        return 3 * self.n

    @property
    def label(self) -> str:
        name = f"ResNet-{6 * self.n + 2}"
        return name if self.norm == "batch" else f"{name}, GroupNorm"

    def check(self, signature: Signature) -> None:
        shape = signature.shape
        if len(shape) != 3 or any(side % 4 for side in shape[1:]):
            raise SondeError(
                f"res_net takes images whose sides are multiples of 4, but the task's inputs are "
                f"{'×'.join(map(str, shape))}: choose digits, parity or cifar10, or another model"
            )
        if self.norm == "group" and self.d % min(GROUPS, self.d):
            raise SondeError(f"model.d = {self.d} channels cannot be normalised in {GROUPS} groups: choose {GROUPS}")

    def build(self, signature: Signature, rng: torch.Generator) -> Network:
        self.check(signature)
        d = self.d
        widths = [d, *[d] * self.n, *[2 * d] * self.n, *[4 * d] * self.n]
        with default_init(rng):
            stem = Stem(signature.shape[0], d, self.norm)
            blocks = [BasicBlock(a, b, self.norm) for a, b in pairwise(widths)]
            readout = PooledReadout(4 * d, signature.outputs)
        for module in (stem, *blocks):
            for conv in module.modules():
                if isinstance(conv, nn.Conv2d):
                    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu", generator=rng)
        return Network(stem, blocks, readout, residual=False)


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
