"""The matrix products of a training step: how many operations they are, and how fast this machine does them.

N samples, d width, L blocks, R networks side by side.  A product of N×k and k×m is 2·N·k·m operations.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from sonde.network import Network
from sonde.rules import Backprop, DirectFeedback, FeedbackAlignment, Rule
from sonde.training.credit_assignment import count_operations


@dataclass(frozen=True)
class Layer:
    """A linear layer in a step: forward, weight gradient and, where something below learns from it, input gradient."""

    inputs: int
    outputs: int
    input_gradient: bool

    def flops(self, samples: int) -> int:
        return 2 * samples * self.inputs * self.outputs * (3 if self.input_gradient else 2)


def layers(net: Network, rule: Rule) -> list[Layer]:
    """Every linear layer; where the rule cuts the graph, no gradient is taken at a block's input."""
    across = rule.route == "global"
    found: list[Layer] = []
    learns_below = False
    for unit in (net.embed, *net.blocks):
        found += _layers(unit, across and learns_below)
        learns_below = learns_below or any(True for _ in unit.parameters())
    return [*found, *_layers(net.readout, across or rule.reads_top_gradient)]


def _layers(unit: nn.Module, wanted: bool) -> Iterator[Layer]:
    """The linear layers of a unit in order; what stands before one and learns needs the gradient at its input."""
    for module in unit.modules():
        if isinstance(module, nn.Linear):
            yield Layer(module.in_features, module.out_features, wanted)
        wanted = wanted or any(True for _ in module.parameters(recurse=False))


def flops(net: Network, rule: Rule, x: Tensor) -> int:
    """Operations of the matrix products of one step on the batch x."""
    with torch.no_grad():
        states, output_NC = net.states(x[:1])
    widths, samples = [h.shape[-1] for h in states], len(x)
    linear = sum(layer.flops(samples) for layer in layers(net, rule))
    match rule:
        case Backprop():
            return linear
        case DirectFeedback():
            return linear + 2 * samples * output_NC.shape[-1] * sum(widths)
        case FeedbackAlignment(level="block"):
            return linear + 2 * samples * sum(below * above for below, above in pairwise(widths))
    return count_operations(net, rule, x)


def forward_flops(net: Network, samples: int) -> int:
    """Operations of the matrix products of a forward pass."""
    return sum(2 * samples * layer.inputs * layer.outputs for layer in layers(net, Backprop()))


class Products:
    """The matrix products of a step of backprop, each with matrices of its own, and nothing else.

    With R > 1 networks they are done R at a time.
    """

    def __init__(self, net: Network, samples: int, *, networks: int = 1) -> None:
        chosen = layers(net, Backprop())
        self.flops = networks * sum(layer.flops(samples) for layer in chosen)
        batch = () if networks == 1 else (networks,)
        multiply = torch.mm if networks == 1 else torch.bmm
        self._work = [work for layer in chosen for work in _products(layer, samples, batch, multiply)]

    def __call__(self, steps: int = 1) -> None:
        for _ in range(steps):
            for multiply, left, right, out in self._work:
                multiply(left, right, out=out)


Multiply = Callable[..., Tensor]
Work = tuple[Multiply, Tensor, Tensor, Tensor]


def _products(layer: Layer, samples: int, batch: tuple[int, ...], multiply: Multiply) -> Iterator[Work]:
    x, g = torch.randn(*batch, samples, layer.inputs), torch.randn(*batch, samples, layer.outputs)
    weight = torch.randn(*batch, layer.outputs, layer.inputs)
    yield multiply, x, weight.mT, torch.empty_like(g)
    yield multiply, g.mT, x, torch.empty_like(weight)
    if layer.input_gradient:
        yield multiply, g, weight, torch.empty_like(x)
