"""The units of a module: which submodules they are, and what they are called with while a chain runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from sonde.core.errors import SondeError, nearest


def submodule(module: nn.Module, name: str) -> nn.Module:
    """The submodule of that name; an unknown name raises with similar ones."""
    names: dict[str, nn.Module] = dict(module.named_modules(remove_duplicate=False))
    if not name or name not in names:
        raise SondeError(f"{type(module).__name__} has no submodule {name!r}: {nearest(name, names)}")
    return names[name]


def span_modules(module: nn.Module, first: str, last: str) -> list[nn.Module]:
    """The submodules of a unit, from first to last; several are children of an `nn.Sequential`."""
    if first == last:
        return [submodule(module, first)]
    names = list(module._modules)
    return [submodule(module, name) for name in names[names.index(first) : names.index(last) + 1]]


def matching_names(module: nn.Module, globs: Sequence[str]) -> list[str]:
    """The names of the submodules that the patterns match, in the order of the patterns."""
    names = [name for name, _ in module.named_modules(remove_duplicate=False) if name]
    found: list[str] = []
    for glob in [globs] if isinstance(globs, str) else globs:
        matching = [name for name in names if _matches(name, glob)]
        if not matching:
            raise SondeError(f"{type(module).__name__} has no submodule {glob!r}: {nearest(glob, names)}")
        found += [name for name in matching if name not in found]
    for outer in found:
        for inner in found:
            if inner.startswith(f"{outer}."):
                raise SondeError(f"unit {inner!r} is a part of unit {outer!r}: name one of them")
    if not found:
        raise SondeError("a chain needs at least one unit: name it in units")
    return found


def _matches(name: str, glob: str) -> bool:
    parts, patterns = name.split("."), glob.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def group_sequential(module: nn.Sequential, readout: str | None) -> list[tuple[str, str]]:
    """First and last child of every unit of a sequence; a unit begins at every child with a weight matrix."""
    names = list(module._modules)
    if readout is not None:
        submodule(module, readout)
        if readout not in names:
            raise SondeError(f"readout {readout!r} is no child of the nn.Sequential: {nearest(readout, names)}")
    groups: list[list[str]] = []
    for name in names[: names.index(readout)] if readout is not None else names:
        if not groups or (_has_matrix(module, name) and any(_has_matrix(module, n) for n in groups[-1])):
            groups.append([])
        groups[-1].append(name)
    groups = groups if readout is not None else groups[:-1]
    units = groups[1:] or groups
    if not units:
        raise SondeError("a chain needs a unit and a readout: this nn.Sequential has fewer than two weight matrices")
    return [(group[0], group[-1]) for group in units]


def _has_matrix(module: nn.Sequential, name: str) -> bool:
    return any(p.ndim > 1 for p in submodule(module, name).parameters())


def example_units(module: nn.Module) -> str:
    """A pattern for an error message: the longest list of submodules."""
    lists = {name: len(m) for name, m in module.named_modules() if isinstance(m, nn.ModuleList | nn.Sequential)}
    return f"{max(lists, key=lambda name: lists[name])}.*" if lists else next(iter(module._modules), "layer")


@dataclass(frozen=True)
class UnitCall:
    """The arguments of a unit; its state is the first tensor among them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def slot(self) -> int | str:
        """Index or keyword of the state."""
        for place, value in (*enumerate(self.args), *self.kwargs.items()):
            if isinstance(value, Tensor):
                return place  # type: ignore[return-value]
        raise SondeError("a unit is called without a tensor: a unit takes the state first")

    @property
    def state(self) -> Tensor:
        """The state."""
        slot = self.slot
        state: Tensor = self.args[slot] if isinstance(slot, int) else self.kwargs[slot]
        return state

    def with_input(self, h: Tensor, *, cut: bool = False) -> "UnitCall":
        """The same call with another state; with `cut` all other tensors are detached."""
        args, kwargs, slot = self.args, self.kwargs, self.slot
        if cut:
            args, kwargs = tuple(map(_detached, args)), {key: _detached(v) for key, v in kwargs.items()}
        if isinstance(slot, int):
            return replace(self, args=(*args[:slot], h, *args[slot + 1 :]), kwargs=kwargs)
        return replace(self, args=args, kwargs={**kwargs, slot: h})


@dataclass(frozen=True)
class UnitPart:
    """A submodule of unit l: all of it, or one of several in sequence."""

    layer: int
    first: bool
    last: bool
    forward: Callable[..., Any]

    def __call__(self, call: UnitCall) -> Any:
        return self.forward(*call.args, **call.kwargs)


def visiting_forward(visit: Callable[[UnitPart, UnitCall], Any], parts: list[UnitPart]) -> Callable[..., Any]:
    """A `forward` that calls `visit`; call i of a module is that of its part i, later calls are of the last part."""
    left = iter(parts)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return visit(next(left, parts[-1]), UnitCall(args, kwargs))

    return forward


@contextmanager
def forward_replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace a module's `forward` inside the context."""
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        del module.__dict__["forward"]
        if before is not None:
            module.__dict__["forward"] = before


def with_state(out: Any, h: Tensor) -> Any:
    """What a unit returned, with the state replaced."""
    if isinstance(out, tuple) and hasattr(out, "_replace"):
        return out._replace(**{out._fields[0]: h})  # type: ignore[attr-defined]
    return type(out)((h, *out[1:])) if isinstance(out, tuple | list) else h


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, tuple | list) and not hasattr(value, "_replace"):
        return type(value)(map(_detached, value))
    return value


# ── products by oneDNN ──────────────────────────────────────────────────────────────────────────────
SMALLEST_PRODUCT = 1 << 22  # multiplications: below, a call takes longer than what it saves


class ProductsByOneDNN(TorchFunctionMode):
    """Inside, large linear maps of float32 run by oneDNN: about half the time on AMD, and other last bits than MKL's.

    For values that are measured, not for training: results differ by rounding in float32.  Weights get no gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self.available = has_onednn()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and self.available and not kwargs and len(args) > 1 and _suits_onednn(*args):
            with suppress(RuntimeError):  # inside vmap, or of shapes that do not fit: PyTorch's product says so
                return _LinearByOneDNN.apply(*args[:2], *args[2:] or [None])  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


def _suits_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether this is a large product in float32 on the CPU whose weights need no gradient."""
    weights = [weight] if bias is None else [weight, bias]
    trained = torch.is_grad_enabled() and any(w.requires_grad for w in weights)
    single = all(t.dtype == torch.float32 and t.device.type == "cpu" for t in (x, *weights))
    return single and not trained and x.numel() * len(weight) >= SMALLEST_PRODUCT


class _LinearByOneDNN(torch.autograd.Function):
    """x Wᵀ + b, and g W for its input.  W is copied where a stack of replicas has it transposed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.weight = weight
        return onednn_linear(x.contiguous(), weight.contiguous(), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return onednn_linear(g.contiguous(), ctx.weight.T.contiguous(), None), None, None


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b by oneDNN."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


@cache
def has_onednn() -> bool:
    """Whether this PyTorch has `onednn_linear`."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and hasattr(torch.ops.mkldnn, "_linear_pointwise")
