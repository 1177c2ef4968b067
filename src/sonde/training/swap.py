"""Other matrices on the way back: V in place of W in the product that gives the gradient at a layer's input.

In y = W x the gradient of W is made of x, and the gradient of x of W: so W is what automatic differentiation keeps for
the way back, for the input's gradient and nothing else.  While a swap is on, what is kept of W is replaced by V,
whatever operation keeps it (a linear map, a convolution, the projections of attention); everything else — the forward
pass, the derivatives of activations, gains, the gradient of W from its own input and its own credit — is as it was.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sonde.errors import SondeError


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
        laid = v.detach().to(w)
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
