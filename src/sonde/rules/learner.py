"""What a rule learns beside the network: parameters of its own, and their Adam."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

LR = 1e-3


class Learner:
    """A network of a rule's own and its Adam, saved and restored together."""

    def __init__(self, net: nn.Module, lr: float = LR) -> None:
        self.net = net
        self.lr = lr
        self.optimiser = torch.optim.Adam(net.parameters(), lr=lr, fused=True)

    def descend(self, loss: Tensor) -> None:
        self.follow(torch.autograd.grad(loss, list(self.net.parameters())))

    def follow(self, gradients: Sequence[Tensor]) -> None:
        """A step of Adam against these gradients of the parameters."""
        for p, g in zip(self.net.parameters(), gradients, strict=True):
            p.grad = g
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        return {"net": self.net.state_dict(), "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.optimiser.load_state_dict(state["optimiser"])

    def double(self, device: torch.device) -> "Learner":
        return Learner(copy.deepcopy(self.net).to(device).double(), self.lr)
