"""One look at the network: a double-precision copy evaluated on the probe batch.

N samples, d width, C outputs, L blocks.  The copy leaves the network, its gradients, its mode and every generator
as they were.  The forward pass runs once and the gradient comes back once; all probes share them.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from sonde.generators import generator
from sonde.losses import Loss
from sonde.network import Network

DRAWS = 20
"""How often chance is drawn where credit is judged: with ρ."""

FEW_DRAWS = 4
"""And where the cosine alone is measured, at every epoch."""

Redrawn = Callable[["Snapshot", torch.Generator], Sequence[Tensor]]


@dataclass(frozen=True, kw_only=True)
class Context:
    """What probes may know beside the network and the batch; what is not given, they call undefined."""

    credits: Callable[["Snapshot"], Sequence[Tensor]] | None = None  # the rule's a_0 … a_L
    redrawn: Redrawn | None = None  # the same had the rule drawn anew; None where it draws nothing
    initial: Mapping[str, Tensor] | None = None  # parameters at initialisation
    test: Callable[[int, int], tuple[Tensor, Tensor]] | None = None  # test samples first … last−1
    test_samples: int = 0
    seed: int = 0  # with the epoch, names every random draw
    epoch: int = 0
    directions: int = 32
    draws: int = DRAWS  # of the null
    etas: tuple[float, ...] = (0.001, 0.01, 0.1)
    epsilon: float | None = None  # of rho; None is 1e-3 × RMS(h_l) of each sample


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Snapshot:
    """The copy and what it computed, all in float64 and cut from the graph."""

    net: Network
    y: Tensor
    loss: Loss
    states: list[Tensor]  # h_0 … h_L
    branches: list[Tensor]  # what blocks 0 … L−1 returned
    preactivations: list[Tensor]  # linear output of each block that has one
    output_NC: Tensor
    losses_N: Tensor
    gradients: list[Tensor]  # g_l = ∂ℓ_i/∂h_l, l = 0 … L: per sample, not divided by N
    preactivation_gradients: list[Tensor]  # ∂ℓ_i/∂(linear output), per sample
    context: Context

    @property
    def samples(self) -> int:
        return len(self.losses_N)

    @property
    def depth(self) -> int:
        return len(self.states) - 1

    @cached_property
    def credits(self) -> list[Tensor] | None:
        """a_0 … a_L of the rule, before normalisation; None where no rule is given."""
        source = self.context.credits
        return None if source is None else [a.detach() if a.requires_grad else a for a in source(self)]

    @property
    def candidates(self) -> dict[str, list[Tensor] | None]:
        """The credit of the rule and its ceiling, BP's gradient, by the ending of their metrics' names."""
        return {"": self.credits, "/bp": self.gradients}

    def rng(self, purpose: str) -> torch.Generator:
        return generator(self.context.seed, f"probe/{purpose}/{self.context.epoch}")


def take(net: Network, x: Tensor, y: Tensor, loss: Loss, context: Context | None = None) -> Snapshot:
    """Evaluate a float64 copy of `net` in eval mode, on the CPU where the device has no float64."""
    where = torch.device("cpu") if x.device.type == "mps" else x.device
    twin = copy.deepcopy(net).to(where).double().eval().requires_grad_(False)
    x, y = x.to(where).double(), y.to(where)
    y = y.double() if y.is_floating_point() else y
    with torch.enable_grad(), _linear_outputs(twin) as linear:
        states, branches = [twin.embed(x).detach().requires_grad_()], []
        for block in twin.blocks:
            h, f = states[-1], block(states[-1])
            branches.append(f)
            states.append(h + f if twin.residual else f)
        output_NC = twin.readout(states[-1])
        losses_N = loss.per_sample(output_NC, y)
        gradients = torch.autograd.grad(losses_N.sum(), [*states, *linear], materialize_grads=True)
    return Snapshot(
        net=twin,
        y=y,
        loss=loss,
        states=[h.detach() for h in states],
        branches=[f.detach() for f in branches],
        preactivations=[z.detach() for z in linear],
        output_NC=output_NC.detach(),
        losses_N=losses_N.detach(),
        gradients=list(gradients[: len(states)]),
        preactivation_gradients=list(gradients[len(states) :]),
        context=context or Context(),
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
