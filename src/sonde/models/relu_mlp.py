"""A stack of ReLU layers with or without "+x": what `plain_mlp` and `res_mlp` share."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn

from sonde.errors import SondeError
from sonde.network import Network


class ReluLayer(nn.Module):
    """ReLU(W h + b)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d, d)

    def forward(self, h_Nd: Tensor) -> Tensor:
        return torch.relu(self.linear(h_Nd))


@dataclass(frozen=True, kw_only=True)
class ReluMLP(ABC):
    """Kaiming-normal weights (fan-in, ReLU) times `weight_scale`, biases zero.

    A weight scale of 1 is the raw variant, "1/sqrt(L)" the scaled one.  With and without "+x" the draws are the
    same: both networks of a seed start from the same weights.
    """

    d: Annotated[int, Ge(1)] = 64
    L: Annotated[int, Ge(1)] = 20
    weight_scale: float | Literal["1/sqrt(L)"] = 1.0

    @property
    @abstractmethod
    def label(self) -> str: ...

    @property
    @abstractmethod
    def residual(self) -> bool: ...

    @property
    def alpha(self) -> float:
        return 1 / math.sqrt(self.L) if self.weight_scale == "1/sqrt(L)" else float(self.weight_scale)

    @property
    def variant(self) -> str:
        if self.alpha == 1:
            return "raw"
        return "scaled" if self.alpha == 1 / math.sqrt(self.L) else f"weight scale {self.alpha:g}"

    @property
    def width(self) -> int:
        return self.d

    @property
    def depth(self) -> int:
        return self.L

    def check(self, shape: tuple[int, ...], outputs: int) -> None:
        inputs = math.prod(shape)
        if not inputs == outputs == self.d:
            raise SondeError(
                f"widths do not match: model.d = {self.d}, but the task maps {inputs} inputs to {outputs} "
                f"outputs; set model.d and task.d to the same number"
            )

    def build(self, shape: tuple[int, ...], outputs: int, rng: torch.Generator) -> Network:
        self.check(shape, outputs)
        layers: list[nn.Module] = []
        for _ in range(self.L):
            with torch.random.fork_rng(devices=[]):
                layer = ReluLayer(self.d)
            nn.init.kaiming_normal_(layer.linear.weight, nonlinearity="relu", generator=rng)
            layer.linear.weight.data.mul_(self.alpha)
            nn.init.zeros_(layer.linear.bias)
            layers.append(layer)
        return Network(nn.Identity(), layers, nn.Identity(), residual=self.residual)
