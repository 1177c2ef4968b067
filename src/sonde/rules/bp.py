"""Backpropagation."""

from dataclasses import dataclass

from torch import Tensor

from sonde.losses import Loss
from sonde.network import Network


@dataclass(frozen=True, kw_only=True)
class Backprop:
    """Credit is the gradient itself: a_l = ∂ℓ/∂h_l, by one pass of automatic differentiation.

    Rumelhart, Hinton & Williams (1986).  The reference every other rule is compared with.
    """

    @property
    def label(self) -> str:
        return "BP"

    def gradients(self, net: Network, x: Tensor, y: Tensor, loss: Loss) -> Tensor:
        """Fill the gradient of every parameter; return the batch's mean loss."""
        value = loss.mean(net(x), y)
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()
