"""Deep plain network: h_{l+1} = ReLU(W_l h_l + b_l)."""

from typing import ClassVar, final

from sonde.checked import checked
from sonde.models.relu_mlp import ReluMLP


@final
@checked
class PlainMLP(ReluMLP):
    """Deep plain network: h_{l+1} = ReLU(W_l h_l + b_l)."""

    label: ClassVar[str] = "Plain MLP"
    residual: ClassVar[bool] = False
