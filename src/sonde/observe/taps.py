"""Taps: how a watch reads modules inside a graph of `torch.compile`.

A hook that is traced has no values.  It adds operators to the graph, which call it again whenever the graph runs, with
the tensors of that run.  The operators have an effect, so that the compiler neither removes nor reorders them, and the
graph has no break.  Gradients pass through an identity, whose backward pass has such an operator.

A traced hook reads the switch of its watch, and `torch.compile` guards on it: there is a graph with taps for watched
steps and one without for the others.  A hook has its number as a tensor, so that modules which share a graph, as the
blocks of a transformer that are compiled one by one, do not need a graph each.
"""

import inspect
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from sonde.observe.hooks import ModuleHook

HALF = (
    "half precision in a compiled graph is not read, as this would change how the compiler rounds: "
    "set torch._inductor.config.emulate_precision_casts = True, which rounds as eager mode does"
)
ALWAYS = 0  # the switch that is never off
switches: dict[int, bool] = {ALWAYS: True}
keeps_precision = [False]  # whether inductor rounds as eager mode does

_hooks: "weakref.WeakValueDictionary[int, ModuleHook]" = weakref.WeakValueDictionary()
_numbers = itertools.count(1)  # of switches, hooks and calls


@dataclass(slots=True)
class Tap:
    """A call of a module inside a graph that runs now."""

    number: int  # by which its gradient comes back
    needs_grad: bool
    in_place: bool  # the module may have changed its input
    reason: str | None = None  # why it is not read


BEGINS = Tap(0, needs_grad=False, in_place=False)  # a call that has not returned


def new_switch() -> int:
    """A switch of a watch, off at first."""
    number = next(_numbers)
    switches[number] = False
    return number


def number_of(hook: "ModuleHook") -> Tensor:
    """A number for the hook, by which the operators in a graph find it as long as it exists."""
    number = next(_numbers)
    _hooks[number] = hook
    return torch.tensor(number, device="cpu")


# Operators

_FREE = (torch.Tag.flexible_layout,)  # tensors of any strides: a tap does not change how the graph lays them out
available = True  # whether this PyTorch has effects of operators


def operator(name: str, run: Callable[..., Any]) -> None:
    """Make the function an operator `torch.ops.sonde.NAME` with an effect; it returns nothing, or a whole number."""
    global available
    made = torch.library.custom_op(f"sonde::{name}", run, mutates_args=(), tags=_FREE)
    returns = inspect.signature(run).return_annotation is not None
    made.register_fake(lambda *args: torch.empty((), dtype=torch.int64, device="cpu") if returns else None)
    try:
        from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

        _register_effectful_op(getattr(torch.ops.sonde, name).default, _EffectType.ORDERED)
    except (ImportError, AttributeError):
        available = False


def _before_call(hook: Tensor, args: Sequence[Tensor | None]) -> None:
    known = _hooks.get(int(hook))
    if known is not None:
        with torch.enable_grad():  # the graph is one of a step that trains; inside it, autograd is off
            known.replay(tuple(args))


def _after_call(
    hook: Tensor,
    args: Sequence[Tensor | None],
    names: str,
    values: Sequence[Tensor | None],
    out: Tensor | None,
    needs_grad: bool,
    in_place: bool,
    is_half: bool,
) -> Tensor:
    known = _hooks.get(int(hook))
    number = next(_numbers)
    if known is not None:
        kwargs = dict(zip(names.split(), values, strict=True))
        with torch.enable_grad():
            known.replay(tuple(args), kwargs, out, tap=Tap(number, needs_grad, in_place, HALF if is_half else None))
    return torch.tensor(number, device="cpu")


def _after_gradient(hook: Tensor, grad: Tensor, number: Tensor) -> None:
    known = _hooks.get(int(hook))
    if known is not None:
        known.replay_gradient(int(number), grad)


for _name, _run in (("before_call", _before_call), ("after_call", _after_call), ("after_gradient", _after_gradient)):
    operator(_name, _run)


class _Through(torch.autograd.Function):
    """The identity.  Its output is a copy: a view would forbid modules that work in place."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, hook: Tensor, number: Tensor) -> Tensor:
        ctx.save_for_backward(hook, number)
        return out.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        hook, number = ctx.saved_tensors
        torch.ops.sonde.after_gradient(hook, grads[0], number)
        return grads[0], None, None


# What traced hooks call.  The compiler follows this code: it has no effect but the operators.


def trace_before(hook: Tensor, args: Sequence[Any]) -> None:
    """Add the operator that tells of a call."""
    given = [arg if isinstance(arg, Tensor) and not rounds_elsewhere(arg) else None for arg in args]
    torch.ops.sonde.before_call(hook, given)


def trace_after(
    hook: Tensor, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any, out: Tensor | None
) -> Any:
    """Add the operators that read a call and its gradient; returns the output to go on with.

    `out` is the tensor of the output that is read.
    """
    if out is not None and rounds_elsewhere(out):
        torch.ops.sonde.after_call(hook, [], "", [], None, False, False, True)
        return output
    tensors = {name: value for name, value in kwargs.items() if isinstance(value, Tensor)}
    given = [arg if isinstance(arg, Tensor) else None for arg in args]
    needs_grad = out is not None and out.requires_grad
    in_place = getattr(module, "inplace", False) is True or (out is not None and any(out is arg for arg in args))
    number = torch.ops.sonde.after_call(
        hook, given, " ".join(tensors), list(tensors.values()), out, needs_grad, in_place, False
    )
    return _replaced(output, out, _Through.apply(out, hook, number)) if needs_grad else output


def rounds_elsewhere(out: Tensor) -> bool:
    """Whether the compiler may keep numbers of half precision wider than they are, unless they are read."""
    is_half = out.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled(out.device.type)
    return is_half and not keeps_precision[0]


def _replaced(output: Any, old: Any, new: Tensor) -> Any:
    """The output with one of its tensors replaced."""
    if output is old:
        return new
    if isinstance(output, tuple):
        parts = [_replaced(part, old, new) for part in output]
        return type(output)(*parts) if hasattr(output, "_fields") else tuple(parts)
    if isinstance(output, list):
        return [_replaced(part, old, new) for part in output]
    if type(output) is dict:
        return {name: _replaced(part, old, new) for name, part in output.items()}
    if isinstance(output, Mapping):  # one of a class of its own, such as those of transformers
        for name, part in output.items():
            if part is old:
                output[name] = new  # type: ignore[index]
    return output
