"""Two extensions of autograd that rules need: other weights in the backward pass, and a forward-mode derivative.

**Other weights in the backward pass.**  In y = W x the gradient of W is computed from x, and the gradient of x from W:
autograd saves W for the gradient of the input, and for nothing else.  `weights_in_backward` replaces the saved W by V
in any operation that saves it (a linear map, a convolution, the projections of attention).  The forward pass, the
derivatives of activations, gains and the gradient of W do not change.  `check_replaceable` tests beforehand that W is
used in this way.

**Forward mode.**  `output_tangent` computes Σ_l (∂z/∂h_l) v_l in one pass.
"""

import copy
import importlib
import warnings
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from sonde.core.errors import SondeError
from sonde.core.generators import preserve_rng
from sonde.network import HandOn, Network, first_samples


@contextmanager
def weights_in_backward(matrices: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor]) -> Iterator[set[str]]:
    """Use `weights` in place of `matrices` of the same names in the backward pass of what runs inside.

    Matrices that `weights` does not name are unchanged.  Yields the set of names that autograd has saved so far.
    """
    places: list[tuple[int, int, str, Tensor]] = []  # first and last address of W, its name, V with the strides of W
    for name, v in weights.items():
        if name not in matrices:
            raise SondeError(f"no unit has a matrix {name!r}: there are {', '.join(matrices)}")
        w = matrices[name]
        if v.shape != w.shape:
            raise SondeError(
                f"the backward matrix of {name} is {tuple(v.shape)}, the weight {tuple(w.shape)}: they must be alike"
            )
        aligned = (v.detach() if v.requires_grad else v).to(w)
        if aligned.stride() != w.stride():
            aligned = torch.empty_strided(w.shape, w.stride(), dtype=w.dtype, device=w.device).copy_(aligned)
        extent = sum((size - 1) * stride for size, stride in zip(w.shape, w.stride(), strict=True))
        places.append((w.data_ptr(), w.data_ptr() + extent * w.element_size(), name, aligned))
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
        return v.as_strided(tensor.shape, tensor.stride(), offset)  # W, its transpose, or a slice of it

    if not places:
        yield kept
        return
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def check_replaceable(net: Network, x: Tensor, names: Collection[str]) -> None:
    """Raise where a named matrix is not used in one plain product, in which the gradient of W does not depend on W.

    Runs a copy of each unit in training mode, with W and with another matrix in the backward pass.
    """
    twin, x = copy.deepcopy(net).train().requires_grad_(True), first_samples(x, 3)
    device = x.device

    def gradient(layer: int, name: str, w: nn.Parameter, v: Tensor) -> Tensor | None:
        """The gradient of W with V in the backward pass; None where W is unused, NaN where it is not saved."""
        with preserve_rng(device), torch.enable_grad():
            h = states[layer].detach().requires_grad_()
            with weights_in_backward({name: w}, {name: v}) as kept:
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
                    f"{net.name_of(layer)} does not use {name} in one plain product, so no other matrix can replace "
                    f"it in the backward pass: leave it out of the feedback"
                )


def _ramp(like: Tensor) -> Tensor:
    """Distinct, deterministic numbers in the shape of a tensor."""
    return torch.linspace(-1, 1, like.numel(), device=like.device, dtype=like.dtype).view_as(like)


def output_tangent(run: Callable[[HandOn], Tensor], directions: Sequence[Tensor]) -> Tensor:
    """Σ_l (∂z/∂h_l) v_l, where v_l are the `directions`.  `run` is the network from h_0 to its output z."""

    def join(passed: list[Tensor]) -> Tensor:
        h, tangent = _unpack_dual(passed[-1])
        v = directions[len(passed) - 1]
        return _make_dual(h, v if tangent is None else tangent + v)

    with _forward_mode(), torch.no_grad(), forward_ad.dual_level(), _NoWeightTangents():
        output, tangent = _unpack_dual(run(join))
        return torch.zeros_like(output) if tangent is None else tangent.clone()


class _NoWeightTangents(TorchFunctionMode):
    """Skips the product of x with the tangent of W, which is zero here; PyTorch's formula computes it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LINEAR and not kwargs and len(args) > 1:
            x, weight, *more = args
            (primal, tangent), constants = _unpack_dual(x), [weight, *more[:1]]
            if tangent is not None and all(c is None or _unpack_dual(c)[1] is None for c in constants):
                return _make_dual(func(primal, weight, *more), func(tangent, weight, None, *more[1:]))
        return func(*args, **(kwargs or {}))


_LINEAR = (F.linear, F.conv2d)  # functions of (x, weight, bias, …)


def _unpack_dual(x: Tensor) -> tuple[Tensor, Tensor | None]:
    primal, tangent = forward_ad.unpack_dual(x)  # type: ignore[no-untyped-call]
    return primal, tangent


def _make_dual(x: Tensor, tangent: Tensor) -> Tensor:
    found: Tensor = forward_ad.make_dual(x, tangent)  # type: ignore[no-untyped-call]
    return found


@contextmanager
def _forward_mode() -> Any:
    """Choose kernels that have a forward mode: fused attention and fused transformer layers have none."""
    _import_formulas()
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@cache
def _import_formulas() -> None:
    """Import PyTorch's forward-mode formulas, which warns of a deprecated function of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")
