"""How the output changes when states are moved a little: one forward-mode pass through units and readout."""

import importlib
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from sonde.network import HandOn


def tangent_of_output(run: Callable[[HandOn], Tensor], directions: Sequence[Tensor]) -> Tensor:
    """Σ_l (∂z/∂h_l) v_l: a tangent v_l joins at every state.  `run` is the network from h_0 to its output z."""

    def join(passed: list[Tensor]) -> Tensor:
        h, tangent = _parts(passed[-1])
        v = directions[len(passed) - 1]
        return _dual(h, v if tangent is None else tangent + v)

    with _forward_mode(), torch.no_grad(), forward_ad.dual_level(), WithoutWeightTangents():
        output, tangent = _parts(run(join))
        return torch.zeros_like(output) if tangent is None else tangent.clone()


class WithoutWeightTangents(TorchFunctionMode):
    """Where x changes by v, W x + b changes by W v.

    PyTorch's formula also multiplies x by the change of W, which is a matrix of zeros here: a third product beside
    the two that are needed.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in LINEAR and not kwargs and len(args) > 1:
            x, weight, *more = args
            (primal, tangent), constants = _parts(x), [weight, *more[:1]]
            if tangent is not None and all(c is None or _parts(c)[1] is None for c in constants):
                return _dual(func(primal, weight, *more), func(tangent, weight, None, *more[1:]))
        return func(*args, **(kwargs or {}))


LINEAR = (F.linear, F.conv2d)  # of (x, weight, bias, …)


def _parts(x: Tensor) -> tuple[Tensor, Tensor | None]:
    primal, tangent = forward_ad.unpack_dual(x)  # type: ignore[no-untyped-call]
    return primal, tangent


def _dual(x: Tensor, tangent: Tensor) -> Tensor:
    found: Tensor = forward_ad.make_dual(x, tangent)  # type: ignore[no-untyped-call]
    return found


@contextmanager
def _forward_mode() -> Any:
    """Kernels that have a forward mode: fused attention, and fused transformer layers in eval mode, have none."""
    _prepare()
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@cache
def _prepare() -> None:
    """PyTorch compiles some of its forward-mode formulas at first use, and warns of its own way to do it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")
