"""Reads the autograd graph of an output or a loss: which operations there are, and in which order.

No node is kept; an operation is identified by its sequence number.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from sonde.analysis.diagnosis.run_evidence import LINEAR_OPS

_MOST_NODES = 4000  # nodes that are looked at
_LEAF = "AccumulateGrad"
_THROUGH = (
    "View", "UnsafeView", "Reshape", "ReshapeAlias", "Squeeze", "Unsqueeze", "Transpose", "Permute", "T", "Select",
    "Slice", "Clone", "ToCopy", "Alias", "Expand", "Index", "Unbind", "Flatten", "AsStrided",
)  # fmt: skip
_AFFINE = (
    *_THROUGH,
    "NativeBatchNorm",
    "MkldnnBatchNorm",
    "NativeDropout",
    "AvgPool2D",
    "Mean",
    "Add",
    "Mul",
    "Cat",
)
"""Operations that leave two linear layers as one; a product or a sum only where the other operand is constant."""


def _kind(node: Any) -> str:
    """`AddmmBackward0` is an Addmm."""
    return str(node.name()).split("::")[-1].rstrip("0123456789").removesuffix("Backward")


def sequence_number(x: Tensor | None) -> int | None:
    """The number of the operation that made a tensor."""
    return None if x is None or x.grad_fn is None else int(x.grad_fn._sequence_nr())


def _parents(node: Any) -> list[Any]:
    return [parent for parent, _ in node.next_functions if parent is not None]


def _nodes(start: Any) -> Iterator[Any]:
    seen, waiting = {start}, [start]
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop(0)
        yield node
        for parent in _parents(node):
            if parent not in seen:
                seen.add(parent)
                waiting.append(parent)


def operations_since(loss: Tensor, output: int) -> list[str]:
    """The operations between the model's output and the loss, from the loss backwards."""
    if loss.grad_fn is None:
        return []
    return [_kind(node) for node in _nodes(loss.grad_fn) if _kind(node) != _LEAF and int(node._sequence_nr()) > output]


def largest_shape(loss: Tensor, output: int) -> list[int]:
    """The shape of the largest tensor between the model's output and the loss, where this version of torch has it."""
    nodes = [] if loss.grad_fn is None else [n for n in _nodes(loss.grad_fn) if _kind(n) != _LEAF]
    shapes = [
        [int(size) for size in known.shape]
        for node in nodes
        if int(node._sequence_nr()) > output
        for known in getattr(node, "_input_metadata", ())
    ]
    return max(shapes, key=math.prod, default=[])


def unregistered(output: Tensor, inputs: Iterable[Tensor], known: Collection[int]) -> list[list[int]]:
    """Shapes of the parameters that an output depends on and that are none of these.

    None where the inputs have a graph of their own, which may hold parameters of its own.
    """
    if output.grad_fn is None or any(given.grad_fn is not None for given in inputs):
        return []
    leaves = [node.variable for node in _nodes(output.grad_fn) if _kind(node) == _LEAF]
    return [list(leaf.shape) for leaf in leaves if isinstance(leaf, nn.Parameter) and id(leaf) not in known]


def last_operation(output: Tensor) -> str | None:
    """The operation that computed the output's values, below views of them."""
    node = output.grad_fn
    while node is not None and _kind(node) in _THROUGH:
        node = next(iter(_parents(node)), None)
    return None if node is None else _kind(node)


def _layer(node: Any, names: Mapping[int, str]) -> tuple[str, int, int] | None:
    """Name of the weight, inputs and outputs of a dense linear operation."""
    if _kind(node) not in LINEAR_OPS or getattr(node, "_saved_groups", 1) != 1:
        return None
    for parent in _parents(node):
        leaf = parent
        while leaf is not None and _kind(leaf) in ("T", "Transpose"):
            leaf = next(iter(_parents(leaf)), None)
        if leaf is not None and _kind(leaf) == _LEAF and leaf.variable.dim() >= 2:
            shape = leaf.variable.shape
            return names.get(id(leaf.variable), "?"), int(shape[1:].numel()), int(shape[0])
    return None


def _below(node: Any, is_end: Callable[[Any], bool]) -> Any:
    """The first such node on the way back, if all operations before it are affine."""
    first = True
    while node is not None:
        inputs = [parent for parent in _parents(node) if _depends(parent)]
        if not first and is_end(node):
            return node
        if not first and (_kind(node) not in _AFFINE or len(inputs) != 1):
            return None
        first, node = False, inputs[0] if len(inputs) == 1 else None
    return None


def _depends(node: Any) -> bool:
    """Whether a node depends on more than a parameter."""
    while _kind(node) in ("T", "Transpose", "Expand"):
        node = next(iter(_parents(node)), None)
        if node is None:
            return False
    return _kind(node) != _LEAF


def bare_pairs(output: Tensor, names: Mapping[int, str]) -> list[list[str]]:
    """Linear layers with nothing but affine operations between them, and with no bottleneck as the reason for two.

    A pair d₁ → m → d₂ with m < min(d₁, d₂) restricts the rank, which may be meant; with m as large as that it is
    one linear layer in two.
    """
    if output.grad_fn is None:
        return []
    found = []
    for node in _nodes(output.grad_fn):
        upper = _layer(node, names)
        if upper is None:
            continue
        below = _below(node, lambda known: _layer(known, names) is not None)
        lower = None if below is None else _layer(below, names)
        if lower is not None and lower[2] >= min(lower[1], upper[2]):
            found.append([lower[0], upper[0]])
    return found


def is_nonlinear(output: Tensor) -> bool:
    """Whether anything but linear operations with parameters, and affine ones, leads to the output."""
    if output.grad_fn is None:
        return True
    return any(_kind(node) not in (*LINEAR_OPS, *_AFFINE, _LEAF) for node in _nodes(output.grad_fn))
