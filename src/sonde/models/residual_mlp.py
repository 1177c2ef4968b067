"""Pre-norm residual MLP: h_{l+1} = h_l + w2(GELU(w1(LN(h_l)))).  N samples, d width.

The network of the audit study.  `res_mlp` is another network: one ReLU layer in each block and no LayerNorm.
"""

from typing import Annotated, final

import torch
import torch.nn.functional as F  # noqa: N812
from annotated_types import Ge
from torch import Tensor, nn

from sonde.core.validated import validated
from sonde.models.model import Embedding, Model, Readout, default_init
from sonde.network import Network, Signature


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
    `residual`, h_{l+1} is the output of the block alone.
    """

    d: Annotated[int, Ge(1)] = 256
    L: Annotated[int, Ge(1)] = 4
    out_ln: bool = True
    residual: bool = True
    w2_std: Annotated[float, Ge(0)] = 0.01

    @property
    def label(self) -> str:
        name = "ResMLP" if self.residual else "MLP without residual"
        return name if self.out_ln else f"{name}, no terminal LN"

    def build(self, signature: Signature, rng: torch.Generator) -> Network:
        with default_init(rng):
            embed = Embedding(signature.shape, self.d)
            blocks = [PreNormBlock(self.d) for _ in range(self.L)]
            readout = Readout(self.d, signature.outputs, out_ln=self.out_ln)
        for block in blocks:
            nn.init.normal_(block.w2.weight, std=self.w2_std, generator=rng)
            nn.init.zeros_(block.w2.bias)
        return Network(embed, blocks, readout, residual=self.residual)
