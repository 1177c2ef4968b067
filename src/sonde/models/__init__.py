"""Networks, chosen by name."""

from sonde.models.model import Model
from sonde.models.plain_and_res_mlp import PlainMLP, ResMLP
from sonde.models.residual_mlp import ResidualMLP
from sonde.models.student_net import StudentNet
from sonde.models.vit_mini import VitMini

MODELS: dict[str, type[Model]] = {
    "plain_mlp": PlainMLP,
    "res_mlp": ResMLP,
    "residual_mlp": ResidualMLP,
    "vit_mini": VitMini,
    "student_net": StudentNet,
}

__all__ = ["MODELS", "Model", "PlainMLP", "ResMLP", "ResidualMLP", "StudentNet", "VitMini"]
