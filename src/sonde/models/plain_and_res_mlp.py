"""The pair of the residual study, `plain_mlp` and `res_mlp`: one ReLU layer in each block, without normalisation.

They differ only in "+x".  `residual_mlp` is another network: it has LayerNorm, two matrices in each block and an
embedding.
"""

import math
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge
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

    name: ClassVar[str] = "Residual MLP"
    residual: ClassVar[bool] = True
