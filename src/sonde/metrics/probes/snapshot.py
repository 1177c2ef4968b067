"""A snapshot of the network: a double-precision copy evaluated on the probe batch.

N samples, d width, C outputs, L blocks.  The copy leaves the network, its gradients, its mode and every generator
as they were.  The forward pass runs once and the gradient comes back once; all probes share them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.network import READER, HandOn, Network, Pooling, frozen_copy, leaf_at, survey
from sonde.network.losses import Loss, LossFunction, as_loss

DRAWS = 20
"""Draws of the null at epochs where ρ is measured."""

FEW_DRAWS = 4
"""Draws of the null at epochs where the cosine alone is measured."""

Redrawn = Callable[["Snapshot", torch.Generator], Sequence[Tensor]]


@dataclass(frozen=True, kw_only=True)
class Context:
    """What probes may use beside the network and the batch; metrics that need what is not given are undefined."""

    credits: Callable[["Snapshot"], Sequence[Tensor]] | None = None  # the rule's a_0 … a_L
    undefined_credit: str | None = None  # why a rule's credit does not stand in for the gradient
    feedback: Callable[["Snapshot"], Mapping[str, Tensor]] | None = None  # V by the names of the weights it replaces
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
    x: Tensor
    y: Tensor
    loss: Loss
    states: list[Tensor]  # h_0 … h_L
    branches: list[Tensor]  # what blocks 0 … L−1 returned
    preactivations: list[Tensor | None]  # the first linear output of each block; None of a block that has none
    output_NC: Tensor
    losses_N: Tensor
    gradients: list[Tensor]  # g_l = ∂ℓ_i/∂h_l, l = 0 … L: per sample, not divided by N
    preactivation_gradients: list[Tensor | None]  # ∂ℓ_i/∂(linear output), per sample
    context: Context
    precision: torch.dtype = torch.float64  # of the weights that training moves
    resolutions: dict[int, Tensor] = field(default_factory=dict)  # by layer, of those that a probe has asked for

    @property
    def samples(self) -> int:
        """N, the number of samples."""
        return len(self.losses_N)

    @property
    def depth(self) -> int:
        """L, the number of blocks: the states are h_0 … h_L."""
        return len(self.states) - 1

    @property
    def pooling(self) -> Pooling:
        """Which vector of a sample is read."""
        assert self.net.pooling is not None
        return self.net.pooling

    reader = READER

    @cached_property
    def unread(self) -> list[str | None]:
        """Why nothing can be said of the gradient at what is read of each state, or None where something can.

        A gradient that is exactly zero at what is read, and not elsewhere, is not a small gradient: the output does not
        depend on what is read.
        """
        reads = [bool(self.pooling.credit(g).any()) or not bool(g.any()) for g in self.gradients]
        return [None if seen else "the readout does not read this token" for seen in reads]

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
        """The generator `probe/{purpose}/{epoch}` of the run's seed: the same draws whenever the epoch is probed."""
        return generator(self.context.seed, f"probe/{purpose}/{self.context.epoch}")


def take(net: nn.Module, x: Tensor, y: Tensor, loss: Loss | LossFunction, context: Context | None = None) -> Snapshot:
    """Evaluate a float64 copy of `net` in eval mode, on the CPU where the device has no float64.

    `net` is a network, what `sonde.chain` makes of a module, or a module with `embed`, `blocks` and `readout`.
    """
    net = Network.of(net)
    where = torch.device("cpu") if x.device.type == "mps" else x.device
    if net.mixes is not None:
        raise SondeError(
            f"{net.mixes} lets samples see each other in eval mode, too, so nothing can be measured of one sample: let "
            f"normalisation over the batch keep running statistics"
        )
    twin = frozen_copy(net).to(where).double()
    x, y = (value.to(where) for value in (x, y))
    x, y = (value.double() if value.is_floating_point() else value for value in (x, y))
    if net.pooling is None:
        seen = survey(twin, x)
        for known in (net, twin):
            seen.remember(known)
    with torch.enable_grad(), _linear_outputs(twin) as (found, hand_on):
        states, branches, output_NC = twin.run(x, hand_on)
        loss = as_loss(loss, output_NC.shape[1:])
        losses_N = loss.per_sample(output_NC, y)
        linear = [found.get(block) for block in range(twin.depth)]
        wanted = [*states, *(z for z in linear if z is not None)]
        gradients = torch.autograd.grad(losses_N.sum(), wanted, materialize_grads=True)
    of_linear = iter(gradients[len(states) :])
    return Snapshot(
        net=twin,
        x=x,
        y=y,
        loss=loss,
        states=[h.detach() for h in states],
        branches=[f.detach() for f in branches],
        preactivations=[None if z is None else z.detach() for z in linear],
        output_NC=output_NC.detach(),
        losses_N=losses_N.detach(),
        gradients=list(gradients[: len(states)]),
        preactivation_gradients=[None if z is None else next(of_linear) for z in linear],
        context=context or Context(),
        precision=next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float64),
    )


@contextmanager
def _linear_outputs(net: Network) -> Iterator[tuple[dict[int, Tensor], HandOn]]:
    """Collect the output of the first linear map or convolution that every block runs.

    Which block is running is known by the states that were handed on: blocks may share a module.
    """
    outputs: dict[int, Tensor] = {}
    begun, cut = -1, leaf_at(0)  # the block whose input was handed on last

    def hand_on(states: list[Tensor]) -> Tensor:
        nonlocal begun
        begun = len(states) - 1
        return cut(states)

    def collect(_module: nn.Module, _inputs: object, out: Tensor) -> None:
        if 0 <= begun < net.depth:
            outputs.setdefault(begun, out)

    inside = {module for unit in net.blocks for module in unit.modules()}
    handles = [m.register_forward_hook(collect) for m in inside if isinstance(m, nn.Linear | _ConvNd)]
    try:
        yield outputs, hand_on
    finally:
        for handle in handles:
            handle.remove()
