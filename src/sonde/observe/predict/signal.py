"""A tensor that holds moments in place of values: run a model on it, and every operation is recorded.

`Signal` is a tensor subclass on the meta device.  It has a shape and no values; a torch function that is called on it
looks up how the operation changes moments (`operations`).  Parameters and buffers keep their values, so that whatever
is computed from them alone is computed.  Python code runs as it is; what depends on values of the input is refused.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sonde.analysis.moments import Moments, Shape
from sonde.core.errors import SondeError
from sonde.observe.predict.tape import Backward, Forward, Node, Tape


class Signal(Tensor):
    """A tensor on the meta device with the moments of its entries."""

    node: Node
    tape: Tape

    @staticmethod
    def of(node: Node, tape: Tape, dtype: torch.dtype = torch.float32) -> "Signal":
        """The tensor that stands for a node."""
        signal = torch.empty(node.shape, device="meta", dtype=dtype).as_subclass(Signal)
        signal.node, signal.tape = node, tape
        return signal

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from sonde.observe.predict.operations import apply

        return apply(func, args, kwargs or {})


def signals_in(value: Any) -> list[Signal]:
    """Every signal in nested tuples, lists and mappings, in order."""
    if isinstance(value, Signal):
        return [value]
    if isinstance(value, dict):
        return [found for inner in value.values() for found in signals_in(inner)]
    if isinstance(value, list | tuple):
        return [found for inner in value for found in signals_in(inner)]
    return []


def on_meta(value: Any) -> Any:
    """The same arguments with tensors on the meta device, to find the shape of a result."""
    if isinstance(value, Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            return value.as_subclass(Tensor).detach().to("meta")
    if isinstance(value, dict):
        return {key: on_meta(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        inner = [on_meta(one) for one in value]
        return inner if isinstance(value, list) else tuple(inner)
    return value


def result_of(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of a function on the meta device: shapes and types without values."""
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*on_meta(args), **on_meta(kwargs))
    except (RuntimeError, TypeError, NotImplementedError, ValueError) as error:
        name = getattr(func, "__name__", str(func))
        raise SondeError(f"the model cannot be run without values: {name}: {str(error).splitlines()[0]}") from error


def unknown_result(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """A result whose moments are not known; results that are not tensors are returned as they are."""
    result = result_of(func, args, kwargs)
    parents = signals_in([args, kwargs])
    tape = parents[0].tape
    why = f"{name} has no moments here: see `sonde.observe.predict.register`"

    def blank(value: Any) -> Any:
        if isinstance(value, Tensor):
            return undefined_signal(tape, tuple(value.shape), why, [p.node for p in parents], value.dtype)
        if isinstance(value, list | tuple):
            inner = [blank(one) for one in value]
            return type(value)(*inner) if hasattr(value, "_fields") else type(value)(inner)
        return value

    return blank(result)


def undefined_signal(
    tape: Tape, shape: Shape, why: str, parents: Sequence[Node], dtype: torch.dtype = torch.float32
) -> Signal:
    """A result without moments, for a reason: that of its first undefined parent, or `why`."""
    why = next((parent.undefined for parent in parents if parent.undefined), why)
    moments = Moments(math.nan, np.full([2] * len(shape), math.nan))
    return Signal.of(tape.add(Node(shape, moments, list(parents), undefined=why)), tape, dtype)


def make(
    inputs: Sequence[Signal],
    shape: Sequence[int],
    forward: Forward,
    backward: Backward,
    *,
    fresh: float = 0.0,
    overlap: float | None = None,
    **known: Any,
) -> Signal:
    """A signal of this shape from its moments, with what else its node knows; `fresh` is the variance of weights."""
    tape, parents, sizes = inputs[0].tape, [x.node for x in inputs], tuple(shape)
    bad = next((parent for parent in parents if parent.undefined), None)
    if bad is not None:
        return undefined_signal(tape, sizes, str(bad.undefined), parents)
    moments = forward([parent.moments for parent in parents])
    overlap = max(parent.overlap for parent in parents) if overlap is None else overlap
    node = Node(sizes, moments, parents, backward, overlap=overlap, is_weighted="rows" in known, **known)
    if "sizes" not in known:  # means of tokens differ in size even where tokens do not
        node.sizes = overlap if node.is_weighted or node.is_pooled else max(parent.sizes for parent in parents)
    return Signal.of(tape.add(node, forward, fresh), tape, inputs[0].dtype)
