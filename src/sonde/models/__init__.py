"""Networks, chosen by name."""

from sonde.models.model import Model
from sonde.models.plain_mlp import PlainMLP
from sonde.models.res_mlp import ResMLP

MODELS: dict[str, type[Model]] = {
    "plain_mlp": PlainMLP,
    "res_mlp": ResMLP,
}

__all__ = ["MODELS", "Model", "PlainMLP", "ResMLP"]
