"""Built-in networks, chosen by name in `MODELS`.

A model is a frozen configuration with `build`, which returns a network as a chain of units (`sonde.network`).  `d` is
the width, `L` the number of blocks, `init_scale` the factor of the residual branches at initialisation.  `label` and
`variant` are what figures and tables call it; `check` refuses a task that it cannot read.

Models know nothing of rules, tasks and metrics: they meet in `sonde.network`.  A model of your own needs no entry
here; a plugin is a class or function in a file, see docs/own.md.

To add a built-in model: a class that is validated when it is made, and its line in `MODELS`.  Its `first_options` name
the options of its first release, so that later options do not change its run ids.  The contract tests then run it under
every rule.
"""

from sonde.models.image_nets import ConvNet, ResNet, VitMini
from sonde.models.mlps import PlainMLP, ResidualMLP, ResMLP, StudentNet
from sonde.models.model import Model

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
