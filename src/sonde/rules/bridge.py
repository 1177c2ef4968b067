"""What State Bridge and Credit Bridge share: a small network that reads (h_l, t_l, s).  N rows, d width."""

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sonde.errors import SondeError
from sonde.readers import Reader
from sonde.rules.rule import Facts

InputNorm = Literal["layer", "none"]
HIDDEN = 256
LR = 1e-3


class BridgeNet(nn.Module):
    """An MLP with GELU on the concatenation of a state, its depth t = l/L and the side information s."""

    def __init__(self, inputs: int, hidden_layers: int, outputs: int) -> None:
        super().__init__()
        widths = [inputs, *[HIDDEN] * hidden_layers, outputs]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, h_Nd: Tensor, t_N1: Tensor, s_NS: Tensor) -> Tensor:
        x = torch.cat([h_Nd, t_N1, s_NS], dim=-1)
        for layer in self.layers[:-1]:
            x = F.gelu(layer(x))
        out: Tensor = self.layers[-1](x)
        return out


def build(inputs: int, hidden_layers: int, outputs: int, facts: Facts, rng: torch.Generator) -> BridgeNet:
    """PyTorch's default weights, drawn from the rule's own generator."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (1,), generator=rng)))
        net = BridgeNet(inputs, hidden_layers, outputs)
    return net.to(facts.device, facts.dtype)


def width_of(facts: Facts) -> int:
    """The one width of what is read of all states; a bridge reads states of every layer with the same network."""
    for name, below, above in facts.transitions:
        if below != above:
            before, after = ("×".join(map(str, shape)) for shape in (below, above))
            raise SondeError(
                f"a bridge needs states of one shape, but {name} makes {after} of {before}: use fa or dfa"
            )
    return facts.reader.width(facts.shapes[0])


def normalised(h_Nd: Tensor, input_norm: InputNorm) -> Tensor:
    return F.layer_norm(h_Nd, h_Nd.shape[-1:]) if input_norm == "layer" else h_Nd


def stacked(
    states: Sequence[Tensor], depth: int, s_NS: Tensor, reader: Reader
) -> tuple[Tensor, Tensor, Tensor]:
    """What is read of layers 0, 1, …, with t = l/L and the side information, each a row of the network's input."""
    h_lNd = torch.stack([reader.read(h) for h in states]).detach()
    layers, samples, _ = h_lNd.shape
    t_l = torch.arange(layers, device=h_lNd.device, dtype=h_lNd.dtype) / depth
    return h_lNd, t_l.view(-1, 1, 1).expand(layers, samples, 1), s_NS.expand(layers, *s_NS.shape)


def unstacked(a_lNd: Tensor, states: Sequence[Tensor], reader: Reader) -> list[Tensor]:
    """Credit of what is read of each layer as credit of its state."""
    return [reader.spread(a_Nd, h) for a_Nd, h in zip(a_lNd, states, strict=True)]


class Learner:
    """A bridge's network and its Adam, saved and restored together."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.optimiser = torch.optim.Adam(net.parameters(), lr=LR, fused=True)

    def descend(self, loss: Tensor) -> None:
        parameters = list(self.net.parameters())
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.grad = g
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        return {"net": self.net.state_dict(), "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.optimiser.load_state_dict(state["optimiser"])

    def double(self, device: torch.device) -> "Learner":
        return Learner(copy.deepcopy(self.net).to(device).double())
