"""One look at the network: a double-precision copy evaluated on the probe batch.

N samples, d width, L blocks.  The copy leaves the network, its gradients, its mode and every generator as they
were.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from sonde.losses import Loss
from sonde.network import Network


@dataclass
class Snapshot:
    """States, linear outputs and per-sample losses with the graph that joins them, all in float64."""

    states: list[Tensor]  # h_0 … h_L
    preactivations: list[Tensor]  # linear output of each block that has one
    losses_N: Tensor

    @property
    def samples(self) -> int:
        return len(self.losses_N)

    @property
    def depth(self) -> int:
        return len(self.states) - 1

    @cached_property
    def _gradients(self) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            self.losses_N.sum(), [*self.states, *self.preactivations], retain_graph=True
        )

    @property
    def gradients(self) -> tuple[Tensor, ...]:
        """g_l = ∂ℓ_i/∂h_l, l = 0 … L: per sample, not divided by N."""
        return self._gradients[: len(self.states)]

    @property
    def preactivation_gradients(self) -> tuple[Tensor, ...]:
        """∂ℓ_i/∂(linear output of block l), per sample."""
        return self._gradients[len(self.states) :]


def take(net: Network, x: Tensor, y: Tensor, loss: Loss) -> Snapshot:
    """Evaluate a float64 copy of `net` in eval mode."""
    twin = copy.deepcopy(net).double().eval()
    x = x.double().requires_grad_()
    with _linear_outputs(twin) as preactivations:
        states, output = twin.states(x)
    return Snapshot(
        states, preactivations, loss.per_sample(output, y.double() if y.is_floating_point() else y)
    )


@contextmanager
def _linear_outputs(net: Network) -> Iterator[list[Tensor]]:
    """Collect the output of the first linear map of every block while the network runs."""
    outputs: list[Tensor] = []
    handles = []
    for block in net.blocks:
        first = next((m for m in block.modules() if isinstance(m, nn.Linear)), None)
        if first is not None:
            handles.append(first.register_forward_hook(lambda _m, _i, out: outputs.append(out)))
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
