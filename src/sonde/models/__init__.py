"""Networks, chosen by name."""

from sonde.models.conv_net import ConvNet
from sonde.models.model import Model
from sonde.models.plain_and_res_mlp import PlainMLP, ResMLP
from sonde.models.res_net import ResNet
from sonde.models.residual_mlp import ResidualMLP
from sonde.models.student_net import StudentNet
from sonde.models.vit_mini import VitMini

MODELS: dict[str, type[Model]] = {
    "plain_mlp": PlainMLP,
    "res_mlp": ResMLP,
    "residual_mlp": ResidualMLP,
    "vit_mini": VitMini,
    "student_net": StudentNet,
    "conv_net": ConvNet,
    "res_net": ResNet,
}

__all__ = [
    "MODELS",
    "ConvNet",
    "Model",
    "PlainMLP",
    "ResMLP",
    "ResNet",
    "ResidualMLP",
    "StudentNet",
    "VitMini",
]
