"""Deep residual network: h_{l+1} = h_l + ReLU(W_l h_l + b_l)."""

from typing import ClassVar, final

from sonde.checked import checked
from sonde.models.relu_mlp import ReluMLP


@final
@checked
class ResMLP(ReluMLP):
    """Deep residual network: h_{l+1} = h_l + ReLU(W_l h_l + b_l)."""

    label: ClassVar[str] = "Residual MLP"
    residual: ClassVar[bool] = True
