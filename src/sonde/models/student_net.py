"""Residual student without normalisation: h_{l+1} = h_l + w2(φ_α(w1 h_l)).  N samples, d width."""

from typing import Annotated, final

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from sonde.core.validated import validated
from sonde.models.model import Embedding, Model, Readout, default_init
from sonde.network import Network, Signature


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
