"""Operations of a pass: read from the autograd graph of an output or a loss, or as a copy of the model computes them.

The graph tells which operations there are, and in which order; no node is kept, and an operation is identified by its
sequence number.  Hooks of modules do not see functions such as `F.relu`, `softmax` or `log`: a dispatch mode reads each
as it is computed, with the module it belongs to.  Gates of recurrent layers are recomputed from input and output.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sonde.analysis.diagnosis.run_record import BINARY_LOSSES, CLASS_LOSSES, LINEAR_OPS
from sonde.metrics.reductions import at_bounds, unit_bounds
from sonde.observe import finite_or_none
from sonde.observe.watched_modules import WHOLE_MODEL

_MOST_NODES = 4000  # nodes that are looked at
_LEAF = "AccumulateGrad"
_THROUGH = (
    "View", "UnsafeView", "Reshape", "ReshapeAlias", "Squeeze", "Unsqueeze", "Transpose", "Permute", "T", "Select",
    "Slice", "Clone", "ToCopy", "Alias", "Expand", "Index", "Unbind", "Flatten", "AsStrided",
)  # fmt: skip
_AFFINE = (*_THROUGH, "NativeBatchNorm", "MkldnnBatchNorm", "NativeDropout", "AvgPool2D", "Mean", "Add", "Mul", "Cat")
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


def softmax_axis(loss: Tensor, output: int) -> list[int]:
    """The axis of the last log-softmax of a loss, and how many axes there are; empty where there is none."""
    nodes = [] if loss.grad_fn is None else _nodes(loss.grad_fn)
    for node in nodes:
        if _kind(node) == "LogSoftmax" and int(node._sequence_nr()) > output:
            axes, axis = len(next(iter(getattr(node, "_input_metadata", ()))).shape), int(node._saved_dim)
            return [axis - (1 << 64) + axes if axis >= 1 << 63 else axis, axes]
    return []


def is_weighted(loss: Tensor, output: int) -> bool:
    """Whether the negative log-likelihood of a loss weighs classes."""
    nodes = [] if loss.grad_fn is None else _nodes(loss.grad_fn)
    return any(
        _is_kept(node, weights)
        for node in nodes
        if int(node._sequence_nr()) > output
        for weights in ("_saved_weight", "_saved_pos_weight")
        if _kind(node) in BINARY_LOSSES | CLASS_LOSSES
    )


def _is_kept(node: Any, name: str) -> bool:
    """Whether an operation kept a tensor for its gradient; one that was freed since raises an error."""
    try:
        return getattr(node, name, None) is not None
    except RuntimeError:
        return True


def has_further_terms(loss: Tensor, output: int) -> bool:
    """Whether a loss depends on what the model computes by another way than through its output."""
    nodes = [] if loss.grad_fn is None else _nodes(loss.grad_fn)
    above = [node for node in nodes if _kind(node) != _LEAF and int(node._sequence_nr()) > output]
    below = {parent for node in above for parent in _parents(node) if parent not in above}
    return any(_kind(node) != _LEAF and int(node._sequence_nr()) < output for node in below)


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
    node = _through(output.grad_fn)
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


def routers(output: Tensor, names: Mapping[int, str]) -> list[tuple[str, Tensor, Tensor, Any]]:
    """Linear layers whose softmax a top-k follows: name, probabilities, the places that were chosen, and the node of
    the gates: the values of the top-k, or what they are divided to.
    """
    found = []
    nodes = [] if output.grad_fn is None else list(_nodes(output.grad_fn))
    divided = {_through(next(iter(_parents(node)), None)): node for node in nodes if _kind(node) == "Div"}
    for node in nodes:
        if _kind(node) != "Topk":
            continue
        softmax = _through(next(iter(_parents(node)), None))
        layer = (
            None if softmax is None or _kind(softmax) != "Softmax" else _through(next(iter(_parents(softmax)), None))
        )
        weight = None if layer is None else _layer(layer, names)
        if weight is not None and weight[0] != "?":
            name = weight[0].rpartition(".")[0] or WHOLE_MODEL
            found.append((name, softmax._saved_result.detach(), node._saved_indices, divided.get(node, node)))
    return found


def _through(node: Any) -> Any:
    """The first node on the way back that is no view."""
    while node is not None and _kind(node) in _THROUGH:
        node = next(iter(_parents(node)), None)
    return node


def is_nonlinear(output: Tensor) -> bool:
    """Whether anything but linear operations with parameters, and affine ones, leads to the output."""
    if output.grad_fn is None:
        return True
    return any(_kind(node) not in (*LINEAR_OPS, *_AFFINE, _LEAF) for node in _nodes(output.grad_fn))


_FILLS = ("fill", "full", "scalar", "where", "copy", "empty", "zeros", "ones", "constant", "scatter", "index_put")
_GATE_BOUND = math.log(99)  # beyond ±this a sigmoid is within 1 % of 0 or 1
_ACTIVATIONS = ("relu", "tanh", "sigmoid", "_softmax", "gelu", "silu", "elu", "leaky_relu", "hardtanh", "softplus")


class _ReadOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.where: list[str] = []
        self.first_broken: dict[str, Any] | None = None
        self.dead: dict[str, float] = {}
        self.saturated: dict[str, float] = {}
        self.attention: list[dict[str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("aten.").split(".")[0]
        if isinstance(out, Tensor) and out.layout == torch.strided and out.is_floating_point() and out.numel():
            if self.first_broken is None and not any(word in name for word in _FILLS):
                self._find_nonfinite(name, args, out)
            if name in _ACTIVATIONS and out.dim() > 1:
                self._read_activation(name, args, out)
        return out

    @property
    def place(self) -> str:
        return self.where[-1] if self.where else "the loss"

    def _find_nonfinite(self, name: str, args: Any, out: Tensor) -> None:
        if bool(out.isfinite().all()):
            return
        inputs = [x for x in args if isinstance(x, Tensor) and x.is_floating_point()]
        masked = any(bool(x.isinf().any()) and not bool(x.isnan().any()) for x in inputs)
        if masked and not bool(out.isnan().any()):
            return  # −∞ of a mask
        first = inputs[0] if inputs else out
        self.first_broken = {
            "operation": name.strip("_"),
            "module": self.place,
            "smallest_input": finite_or_none(float(first.double().nan_to_num(0.0, 0.0, 0.0).min())),
            "largest_input": finite_or_none(float(first.double().nan_to_num(0.0, 0.0, 0.0).abs().max())),
        }

    def _read_activation(self, name: str, args: Any, out: Tensor) -> None:
        units = 1 if out.dim() > 3 else out.dim() - 1
        key = f"{self.place}:{name.strip('_')}"
        if name == "relu":
            _, high = unit_bounds(out, units, never_negative=True)
            self.dead[key] = max(self.dead.get(key, 0.0), float((high == 0).double().mean()))
        if name in ("tanh", "sigmoid"):
            count = at_bounds(out, (-1.0 if name == "tanh" else 0.0, 1.0))
            self.saturated[key] = max(self.saturated.get(key, 0.0), float(count) / out.numel())
        if name == "_softmax" and out.dim() >= 3 and out.shape[-1] > 1 and self.where:
            logits = args[0]
            finite = logits[logits.isfinite()]
            open_rows = logits.isfinite().sum(-1) > 1  # with more than one key that is not masked
            sharp = (out.amax(-1) > 0.99)[open_rows]
            self.attention.append(
                {
                    "module": self.place,
                    "one_hot_share": float(sharp.double().mean()) if sharp.numel() else 0.0,
                    "max_logit": finite_or_none(float(finite.abs().max())) if finite.numel() else 0.0,
                }
            )


def traced(model: nn.Module, call: Callable[[], Any]) -> dict[str, Any]:
    """Read every operation while `call` runs the model (a copy that may be hooked) and its loss."""
    reading = _ReadOperations()
    handles: list[Any] = []
    for name, module in model.named_modules():
        label = name or "(model)"
        handles.append(module.register_forward_pre_hook(lambda m, a, label=label: reading.where.append(label)))
        handles.append(module.register_forward_hook(lambda m, a, o: reading.where.pop() and None, always_call=True))
    try:
        with reading:
            call()
    finally:
        for handle in handles:
            handle.remove()
    return {
        "first_broken": reading.first_broken,
        "dead": reading.dead,
        "saturated": reading.saturated,
        "attention": reading.attention,
    }


def gate_saturation(model: nn.Module, call: Callable[[nn.Module], Any]) -> dict[str, Any] | None:
    """The share of the first LSTM's or GRU's sigmoid gates that are at a bound, over samples and places; None if none.

    z_t = W_ih x_t + b_ih + W_hh h_{t−1} + b_hh, with h from the layer's own output; a GRU's candidate and an LSTM's
    cell input are no gates.
    """
    name, layer = next(
        ((name, module) for name, module in model.named_modules() if isinstance(module, nn.LSTM | nn.GRU)), ("", None)
    )
    if layer is None or layer.num_layers > 1 or layer.bidirectional or layer.proj_size:
        return None
    seen: list[tuple[Tensor, Tensor]] = []

    def record(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(args[0], Tensor) and args[0].dim() == 3 and len(args) == 1:
            seen.append((args[0], output[0]))

    layer.register_forward_hook(record)
    with torch.no_grad():
        call(model)
        if not seen:
            return None
        x, h = seen[0] if layer.batch_first else (one.transpose(0, 1) for one in seen[0])
        before = torch.cat([torch.zeros_like(h[:, :1]), h[:, :-1]], 1)
        own = dict(layer.named_parameters())
        z = x @ own["weight_ih_l0"].T + before @ own["weight_hh_l0"].T
        if layer.bias:
            z = z + own["bias_ih_l0"] + own["bias_hh_l0"]
        parts = z.chunk(4 if isinstance(layer, nn.LSTM) else 3, -1)
        chosen = (parts[0], parts[1], parts[3]) if isinstance(layer, nn.LSTM) else parts[:2]
        share = float((torch.cat(chosen, -1).abs() > _GATE_BOUND).double().mean())
    return {"module": name or "(model)", "saturated": share}
