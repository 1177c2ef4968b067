"""Learning rules, chosen by name: how credit reaches each layer."""

from typing import Protocol

from torch import Tensor

from sonde.losses import Loss
from sonde.network import Network
from sonde.rules.bp import Backprop


class Rule(Protocol):
    """A rule's configuration, and the parameter gradients it assigns."""

    @property
    def label(self) -> str: ...
    def gradients(self, net: Network, x: Tensor, y: Tensor, loss: Loss) -> Tensor: ...


RULES: dict[str, type[Rule]] = {
    "bp": Backprop,
}

__all__ = ["RULES", "Backprop", "Rule"]
