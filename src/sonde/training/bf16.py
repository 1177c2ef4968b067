"""Matrix products in bfloat16, everything else as it was.

Weights stay in float32 and are rounded for the product alone, forwards and backwards; biases, normalisation, the
residual stream, losses and the optimiser see float32.  Faster only where the processor multiplies bfloat16 matrices.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Bf16Linear(nn.Linear):
    """x Wᵀ in bfloat16 while training, + b in float32; evaluation and probes multiply as usual."""

    rounds = False  # True: in eval mode, too, for the probe `grad_resolution`

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training or self.rounds) or x.dtype != torch.float32:
            return super().forward(x)
        product = F.linear(x.bfloat16(), self.weight.bfloat16()).float()
        return product if self.bias is None else product + self.bias


def use_bf16(net: nn.Module) -> None:
    """Let the linear maps of a network multiply in bfloat16; its parameters are untouched."""
    for module in net.modules():
        if type(module) is nn.Linear:
            module.__class__ = Bf16Linear
