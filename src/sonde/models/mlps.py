"""Multilayer perceptrons: the pair of the residual study, the network of the audit, and the student.

- `plain_mlp`, `res_mlp`: one ReLU layer in each block, without normalisation; they differ only in "+x".
- `residual_mlp`: pre-norm blocks, h_{l+1} = h_l + w2(GELU(w1(LN(h_l)))).
- `student_net`: without normalisation, h_{l+1} = h_l + w2(φ_α(w1 h_l)).

N samples, d width.
"""

import math
from typing import Annotated, ClassVar, Literal, final

import torch
import torch.nn.functional as F  # noqa: N812
from annotated_types import Ge, Le
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.validated import validated
from sonde.models.model import Embedding, Model, Readout, default_init
from sonde.network import Network, Signature


class ReluLayer(nn.Module):
    """ReLU(W h + b)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d, d)

    def forward(self, h_Nd: Tensor) -> Tensor:
        return torch.relu(self.linear(h_Nd))


class LinearLayer(nn.Module):
    """W h + b."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d, d)

    def forward(self, h_Nd: Tensor) -> Tensor:
        z_Nd: Tensor = self.linear(h_Nd)
        return z_Nd


@validated
class ReluMLP(Model):
    """Kaiming-normal weights (fan-in, ReLU) times `weight_scale`, biases zero.

    A weight scale of 1 is the raw variant, "1/sqrt(L)" the scaled one.  The plain and the residual network of a seed
    start from the same weights.  For classification there are also an embedding and a linear head with PyTorch's
    default weights; for regression the width is that of the data.

    With `output` "linear" the last layer has no ReLU.  A plain stack that ends in a ReLU has no negative outputs, so
    its loss on negative targets has a lower bound (`theory.lowest_loss`).
    """

    d: Annotated[int, Ge(1)] = 64
    L: Annotated[int, Ge(1)] = 20
    weight_scale: float | Literal["1/sqrt(L)"] = 1.0
    output: Literal["relu", "linear"] = "relu"

    name: ClassVar[str]
    residual: ClassVar[bool]

    @property
    def label(self) -> str:
        return self.name if self.output == "relu" else f"{self.name}, linear output"

    @property
    def init_scale(self) -> float:
        return 1 / math.sqrt(self.L) if self.weight_scale == "1/sqrt(L)" else float(self.weight_scale)

    @property
    def variant(self) -> str:
        if self.init_scale == 1:
            return "raw"
        return "scaled" if self.init_scale == 1 / math.sqrt(self.L) else f"weight scale {self.init_scale:g}"

    def check(self, signature: Signature) -> None:
        inputs, outputs = math.prod(signature.shape), signature.outputs
        if not signature.classifies and not inputs == outputs == self.d:
            raise SondeError(
                f"widths do not match: model.d = {self.d}, but the task maps {inputs} inputs to {outputs} "
                f"outputs; set model.d and task.d to the same number"
            )

    def build(self, signature: Signature, rng: torch.Generator) -> Network:
        self.check(signature)
        layers: list[nn.Module] = []
        for index in range(self.L):
            linear = self.output == "linear" and index == self.L - 1
            with torch.random.fork_rng(devices=[]):
                layer = LinearLayer(self.d) if linear else ReluLayer(self.d)
            nn.init.kaiming_normal_(layer.linear.weight, nonlinearity="relu", generator=rng)
            layer.linear.weight.data.mul_(self.init_scale)
            nn.init.zeros_(layer.linear.bias)
            layers.append(layer)
        embed: nn.Module = nn.Identity()
        readout: nn.Module = nn.Identity()
        if signature.classifies:
            with default_init(rng):
                embed = Embedding(signature.shape, self.d)
                readout = Readout(self.d, signature.outputs, out_ln=False)
        return Network(embed, layers, readout, residual=self.residual)


@final
@validated
class PlainMLP(ReluMLP):
    """Deep plain network: h_{l+1} = ReLU(W_l h_l + b_l)."""

    name: ClassVar[str] = "Plain MLP"
    residual: ClassVar[bool] = False


@final
@validated
class ResMLP(ReluMLP):
    """Deep residual network: h_{l+1} = h_l + ReLU(W_l h_l + b_l)."""

    name: ClassVar[str] = "ReLU ResMLP"
    residual: ClassVar[bool] = True


class PreNormBlock(nn.Module):
    """w2(GELU(w1(LN(h))))."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(d)
        self.w1 = nn.Linear(d, d)
        self.w2 = nn.Linear(d, d)

    def forward(self, h_Nd: Tensor) -> Tensor:
        f_Nd: Tensor = self.w2(F.gelu(self.w1(self.ln(h_Nd))))
        return f_Nd


@final
@validated
class ResidualMLP(Model):
    """Embedding, pre-norm blocks, a terminal LayerNorm (`out_ln`) and a linear head.

    `w2.weight ~ N(0, w2_std²)` and `w2.bias = 0`; everything else has PyTorch's default weights.  Without
    `residual`, h_{l+1} is the output of the block alone.  With `trained_blocks` = k only the last k blocks learn; the
    blocks below them keep their initial weights.
    """

    d: Annotated[int, Ge(1)] = 256
    L: Annotated[int, Ge(1)] = 4
    out_ln: bool = True
    residual: bool = True
    w2_std: Annotated[float, Ge(0)] = 0.01
    trained_blocks: Annotated[int, Ge(0)] | None = None

    @property
    def label(self) -> str:
        name = "Pre-LN ResMLP" if self.residual else "Pre-LN MLP"
        name = name if self.out_ln else f"{name}, no terminal LN"
        return name if self.trained_blocks is None else f"{name}, {self.trained_blocks} of {self.L} blocks trained"

    def check(self, signature: Signature) -> None:
        if self.trained_blocks is not None and self.trained_blocks > self.L:
            raise SondeError(
                f"model.trained_blocks = {self.trained_blocks}, but model.L = {self.L}: choose at most {self.L}"
            )

    def build(self, signature: Signature, rng: torch.Generator) -> Network:
        self.check(signature)
        with default_init(rng):
            embed = Embedding(signature.shape, self.d)
            blocks = [PreNormBlock(self.d) for _ in range(self.L)]
            readout = Readout(self.d, signature.outputs, out_ln=self.out_ln)
        for block in blocks:
            nn.init.normal_(block.w2.weight, std=self.w2_std, generator=rng)
            nn.init.zeros_(block.w2.bias)
        for block in blocks[: 0 if self.trained_blocks is None else self.L - self.trained_blocks]:
            block.requires_grad_(False)
        return Network(embed, blocks, readout, residual=self.residual)


class StudentBlock(nn.Module):
    """w2(φ_α(w1 h)), φ_α(z) = (1−α)z + α·tanh(z)."""

    def __init__(self, d: int, alpha: float) -> None:
        super().__init__()
        self.w1 = nn.Linear(d, d, bias=False)
        self.w2 = nn.Linear(d, d, bias=False)
        self.alpha = alpha

    def forward(self, h_Nd: Tensor) -> Tensor:
        z_Nd = self.w1(h_Nd)
        f_Nd: Tensor = self.w2((1 - self.alpha) * z_Nd + self.alpha * torch.tanh(z_Nd))
        return f_Nd


@final
@validated
class StudentNet(Model):
    """The architecture of the teacher: w1 ~ N(0, 1/d), w2 ~ N(0, 1/(dL)), no LayerNorm anywhere.

    With `alpha` = 0 the network is linear.
    """

    d: Annotated[int, Ge(1)] = 128
    L: Annotated[int, Ge(1)] = 4
    alpha: Annotated[float, Ge(0), Le(1)] = 1.0

    @property
    def label(self) -> str:
        return "StudentNet" if self.alpha == 1 else f"StudentNet, α = {self.alpha:g}"

    def build(self, signature: Signature, rng: torch.Generator) -> Network:
        with default_init(rng):
            embed = Embedding(signature.shape, self.d)
            blocks = [StudentBlock(self.d, self.alpha) for _ in range(self.L)]
            readout = Readout(self.d, signature.outputs, out_ln=False)
        for block in blocks:
            nn.init.normal_(block.w1.weight, std=self.d**-0.5, generator=rng)
            nn.init.normal_(block.w2.weight, std=(self.d * self.L) ** -0.5, generator=rng)
        return Network(embed, blocks, readout, residual=True)
