"""Deep residual network: h_{l+1} = h_l + ReLU(W_l h_l + b_l)."""

from dataclasses import dataclass
from typing import final

from sonde.models.relu_mlp import ReluMLP


@final
@dataclass(frozen=True, kw_only=True)
class ResMLP(ReluMLP):
    """Deep residual network: h_{l+1} = h_l + ReLU(W_l h_l + b_l)."""

    @property
    def label(self) -> str:
        return "Residual MLP"

    @property
    def residual(self) -> bool:
        return True
