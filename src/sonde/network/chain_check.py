"""Whether units are a chain: seen on a few samples, in a copy of the module."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sonde.core.errors import SondeError
from sonde.core.generators import put_back
from sonde.network import as_it_is, leaf_at, quiet_twin, samples
from sonde.network.names import submodule

if TYPE_CHECKING:
    from sonde.network.chained import Chain

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}  # of the output, relative to its largest number
COARSE = 1e-2  # of shorter numbers


def check(chain: "Chain", x: Tensor) -> "Chain":
    """Raise unless the units, one after the other, give the module's own output; return the copy that was run."""
    x, twin = samples(x, 3), quiet_twin(chain)
    with put_back(x.device), torch.no_grad():
        own = twin.output(twin.module(x))
        states = _run_until_readout(twin, x)
        for layer in reversed(range(twin.depth + 1)):
            _same(twin, layer, own, twin.tail(states[layer], layer, x).output)
        h = states[0]
        for layer in range(twin.depth):
            h = twin.advance(h, layer, x)
        _same(twin, 0, own, twin.tail(h, twin.depth, x).output)
        _no_way_around(twin, x)
        twin.train().run(x)  # what stands between units may do so in training alone, as dropout does
    return twin


def _run_until_readout(twin: "Chain", x: Tensor) -> list[Tensor]:
    """All states; the readout, where its beginning has a name, must not begin before the last of them is there."""
    handed = 0

    def count(states: list[Tensor]) -> Tensor:
        nonlocal handed
        handed = len(states)
        return states[-1]

    def begins(*_: Any) -> None:
        if handed <= twin.depth:
            raise SondeError(f"readout {twin.readout_begins!r} runs before the last unit has run: name a later one")

    if twin.readout_begins is None:
        return twin.run(x).states
    watch = submodule(twin.module, twin.readout_begins).register_forward_pre_hook(begins)
    try:
        return twin.run(x, count).states
    finally:
        watch.remove()


def _same(twin: "Chain", layer: int, own: Tensor, composed: Tensor) -> None:
    error = (own - composed).abs().max() if own.shape == composed.shape else torch.tensor(torch.inf)
    if not bool(error <= TOLERANCE.get(own.dtype, COARSE) * own.abs().max()):
        above = twin.name_of(layer) if layer < twin.depth else "the readout"
        raise SondeError(
            f"given the input of {above} alone, the output is off by {float(error / own.abs().max()):.1e}: what runs "
            f"from there on also uses something from before it, so these units are no chain"
        )


def _no_way_around(twin: "Chain", x: Tensor) -> None:
    """The gradient at h_0 itself is that of the way through the units."""
    twin.requires_grad_(True)
    x = x.clone().requires_grad_() if x.is_floating_point() else x
    gradients = []
    for hand_on in (as_it_is, leaf_at(0)):
        with torch.enable_grad():
            states, _, output = twin.run(x, hand_on)
            weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype, device=output.device)
            goal = (output.flatten() * weight).sum()
            (g,) = torch.autograd.grad(goal, states[0], materialize_grads=True)
        gradients.append(g)
    twin.requires_grad_(False)
    through, around = gradients[1], gradients[0] - gradients[1]
    if around.abs().max() > 100 * TOLERANCE.get(through.dtype, COARSE) * through.abs().max():
        raise SondeError(
            f"the output depends on the input of {twin.name_of(0)} by a way around the units: they are no chain"
        )
