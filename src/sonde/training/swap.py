"""Other matrices on the way back: V in place of W in the product that gives the gradient at a layer's input.

In y = W x the gradient of W is made of x, and the gradient of x of W: so W is what automatic differentiation keeps for
the way back, for the input's gradient and nothing else.  While a swap is on, what is kept of W is replaced by V,
whatever operation keeps it (a linear map, a convolution, the projections of attention); everything else — the forward
pass, the derivatives of activations, gains, the gradient of W from its own input and its own credit — is as it was.
`check_products` makes sure beforehand that W is used in this way.
"""

import copy
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.generators import put_back
from sonde.network import Network, samples


@contextmanager
def swapped(matrices: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor]) -> Iterator[set[str]]:
    """What runs inside goes back through `weights`; yields the names of the matrices that were kept so far.

    `matrices` are the parameters by name; those that `weights` does not name stay as they are.
    """
    places: list[tuple[int, int, str, Tensor]] = []  # first and last address of W, its name, V laid out alike
    for name, v in weights.items():
        if name not in matrices:
            raise SondeError(f"no unit has a matrix {name!r}: there are {', '.join(matrices)}")
        w = matrices[name]
        if v.shape != w.shape:
            raise SondeError(
                f"the backward matrix of {name} is {tuple(v.shape)}, the weight {tuple(w.shape)}: they must be alike"
            )
        laid = (v.detach() if v.requires_grad else v).to(w)
        if laid.stride() != w.stride():
            laid = torch.empty_strided(w.shape, w.stride(), dtype=w.dtype, device=w.device).copy_(laid)
        extent = sum((size - 1) * stride for size, stride in zip(w.shape, w.stride(), strict=True))
        places.append((w.data_ptr(), w.data_ptr() + extent * w.element_size(), name, laid))
    places.sort(key=lambda place: place[0])
    starts = [place[0] for place in places]
    kept: set[str] = set()

    def pack(tensor: Tensor) -> Tensor:
        address = tensor.data_ptr()
        start, end, name, v = places[bisect_right(starts, address) - 1]
        if not start <= address <= end:
            return tensor
        kept.add(name)
        offset = v.storage_offset() + (address - start) // v.element_size()
        return v.as_strided(tensor.shape, tensor.stride(), offset)  # W itself, its transpose, or a part of it

    if not places:
        yield kept
        return
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def check_products(net: Network, x: Tensor, names: Collection[str]) -> None:
    """Refuse matrices that no other can stand in for: in a product, the gradient of W does not depend on W.

    A copy of each unit is run, in training mode, with W and with another matrix on the way back.
    """
    twin, x = copy.deepcopy(net).train(), samples(x, 3)
    device = x.device

    def gradient(layer: int, name: str, w: nn.Parameter, v: Tensor) -> Tensor | None:
        """Of W, and nothing where W takes part in nothing."""
        with put_back(device), torch.enable_grad():
            h = states[layer].detach().requires_grad_()
            with swapped({name: w}, {name: v}) as kept:
                above = twin.advance(h, layer, x)
            (g,) = torch.autograd.grad(above, w, _ramp(above), allow_unused=True)
        return g if g is None or name in kept else g * torch.nan

    with torch.no_grad():
        states = twin.run(x).states
    for layer, unit in enumerate(twin.matrices()):
        for name in unit.keys() & set(names):
            w = unit[name]
            one, other = gradient(layer, name, w, w), gradient(layer, name, w, _ramp(w))
            if one is not None and other is not None and not torch.allclose(one, other):
                raise SondeError(
                    f"{net.name_of(layer)} does not use {name} in one product and as it is, so no other matrix can "
                    f"take its place on the way back: leave it out of the feedback"
                )


def _ramp(like: Tensor) -> Tensor:
    """Numbers that are neither alike nor at random."""
    return torch.linspace(-1, 1, like.numel(), device=like.device, dtype=like.dtype).view_as(like)
