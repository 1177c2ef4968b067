"""How each torch operation changes the moments of a signal, forward and back.

`OPERATIONS` is looked up by the operation's name without underscores, so that `torch.add`, `Tensor.add_` and `+` are
one.  An operation that is not in the table is undefined from there on, by name.  Assumptions: weights are independent
of what they multiply and of the gradient; sums of many terms are Gaussian; different branches are independent but for
their means; a function of the same Gaussian entries (`x * sigmoid(x)`) is integrated exactly.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sonde.core.errors import SondeError
from sonde.observe.predict.attention import attention, masked_fill, multi_head_attention, softmax, where
from sonde.observe.predict.averages import (
    adaptive_pool,
    average_pool,
    batch_norm,
    by_hand,
    dropout,
    group_norm,
    instance_norm,
    layer_norm,
    max_pool,
    mean,
    normalize,
    rms_norm,
    total,
    variance,
)
from sonde.observe.predict.contractions import addmm, convolution, einsum, linear, matmul, transposed_convolution
from sonde.observe.predict.elementwise import Handler, binary, elementwise, pointwise, scalar_value
from sonde.observe.predict.shapes import (
    cat,
    expand,
    index,
    interpolate,
    movedim,
    narrow,
    pad,
    parts,
    permute,
    repeat_interleave,
    reshape,
    reshaping,
    roll,
    select,
    stack,
    transpose,
    unbind,
)
from sonde.observe.predict.signal import Signal, unknown_result


def apply(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of a torch function on signals."""
    name = _name(func)
    if name in _REFUSED:
        raise SondeError(
            f"the model needs values of its input ({name}), as for an `if`, so it cannot be predicted: "
            "measure it with `sonde check` and a batch"
        )
    if name in _ATTRIBUTES:
        return _ATTRIBUTES[name](args[0]) if callable(_ATTRIBUTES[name]) else _ATTRIBUTES[name]
    handler = CUSTOM.get(func) or OPERATIONS.get(name)
    try:
        found = handler(*args, **kwargs) if handler is not None else unknown_result(func, name, args, kwargs)
    except ValueError as error:  # of shapes that do not fit
        raise SondeError(f"{name}: {error}: give the shape of a batch that the model takes") from error
    except (TypeError, IndexError, KeyError, AttributeError):  # arguments that the rule does not take
        if func in CUSTOM:
            raise
        found = unknown_result(func, f"{name} of this form", args, kwargs)
    if name != "setitem" and _is_in_place(func) and isinstance(args[0], Signal) and isinstance(found, Signal):
        args[0].node = found.node
        return args[0]
    return found


def _name(func: Any) -> str:
    name = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__"):
        return f"attribute {func.__self__.__name__}"
    name = name.strip("_")
    return _ALIASES.get(name, name)


def _is_in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or (name.startswith("__i") and name not in ("__invert__",))


def apply_module(module: nn.Module) -> Any:
    """Let a registered function stand for a module; the handle removes it."""

    class Handle:
        forward = module.forward

        def remove(self) -> None:
            module.forward = self.forward

    moments = CUSTOM[type(module)]
    module.forward = lambda *args, **kwargs: moments(module, *args, **kwargs)
    return Handle()


def _same(x: Any, *args: Any, **kwargs: Any) -> Any:
    return x


def _glu(x: Signal, dim: int = -1) -> Any:
    value, gate = x.chunk(2, dim)
    return value * torch.sigmoid(gate)


def _pow(x: Any, exponent: Any) -> Any:
    power = scalar_value(exponent)
    if not isinstance(x, Signal) or power is None:
        return unknown_result(torch.pow, "pow of this form", (x, exponent), {})
    return pointwise(x, lambda z: z**power)


def _prelu(x: Signal, weight: Any) -> Any:
    slope = scalar_value(weight)
    if slope is None:
        return unknown_result(torch.prelu, "prelu with several slopes", (x, weight), {})
    return pointwise(x, lambda z: functional.leaky_relu(z, slope))


def _constant(function: Callable[..., Tensor]) -> Handler:
    """The rule of a function that takes only shape, type and device from a signal, such as `zeros_like`."""

    def handler(x: Signal, *args: Any, **kwargs: Any) -> Tensor:
        return function(torch.empty(tuple(x.shape), dtype=x.dtype), *args, **kwargs)

    return handler


def _embedding(*args: Any, **kwargs: Any) -> Signal:
    raise SondeError("the model takes token ids: give them as a batch of whole numbers, in place of a shape")


_POINTWISE: dict[str, Callable[..., Tensor]] = {
    **{
        name: getattr(functional, name)
        for name in ("relu6", "elu", "selu", "celu", "leaky_relu", "gelu", "silu", "mish")
    },
    **{name: getattr(functional, name) for name in ("softplus", "hardtanh", "hardsigmoid", "hardswish", "logsigmoid")},
    **{name: getattr(functional, name) for name in ("softsign", "tanhshrink", "softshrink", "hardshrink", "threshold")},
    **{name: getattr(torch, name) for name in ("relu", "tanh", "sigmoid", "exp", "sqrt", "rsqrt", "square", "abs")},
    **{name: getattr(torch, name) for name in ("neg", "sin", "cos", "erf", "log", "log1p", "reciprocal", "clamp")},
}

OPERATIONS: dict[str, Handler] = {
    **{name: elementwise(function) for name, function in _POINTWISE.items()},
    "add": binary(torch.add, "add"),
    "sub": binary(torch.sub, "sub"),
    "rsub": lambda a, b: OPERATIONS["sub"](b, a),
    "mul": by_hand(binary(torch.mul, "mul")),
    "div": binary(torch.div, "div"),
    "rdiv": lambda a, b: OPERATIONS["div"](b, a),
    "pow": _pow,
    "linear": linear,
    "matmul": matmul,
    "rmatmul": lambda a, b: matmul(b, a),
    "bmm": matmul,
    "mm": matmul,
    "addmm": addmm,
    "baddbmm": lambda bias, batch1, batch2, beta=1, alpha=1: (
        matmul(batch1, batch2) * alpha + (bias * beta if beta else 0)
    ),
    "einsum": einsum,
    "conv1d": convolution(torch.conv1d),
    "conv2d": convolution(torch.conv2d),
    "conv3d": convolution(torch.conv3d),
    **{f"conv_transpose{n}d": transposed_convolution(getattr(torch, f"conv_transpose{n}d")) for n in (1, 2, 3)},
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "batch_norm": batch_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "normalize": normalize,
    "softmax": softmax,
    "scaled_dot_product_attention": attention,
    "multi_head_attention_forward": multi_head_attention,
    "masked_fill": masked_fill,
    "where": where,
    "mean": mean,
    "sum": total,
    "var": variance,
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), average_pool),
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"), adaptive_pool),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d", "boolean_dispatch"), max_pool),
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout"), dropout),
    **dict.fromkeys(("reshape", "view", "unsafe_view"), reshape),
    **{name: reshaping(getattr(torch, name)) for name in ("flatten", "unflatten", "squeeze", "unsqueeze")},
    "reshape_as": lambda x, other: reshape(x, tuple(other.shape)),
    "view_as": lambda x, other: reshape(x, tuple(other.shape)),
    "permute": permute,
    "transpose": transpose,
    "swapaxes": transpose,
    "t": lambda x: transpose(x, 0, 1) if x.dim() == 2 else x,
    "movedim": movedim,
    "expand": expand,
    "expand_as": lambda x, other: expand(x, tuple(other.shape)),
    "repeat_interleave": repeat_interleave,
    "roll": roll,
    "getitem": index,
    "select": select,
    "narrow": narrow,
    "chunk": parts(torch.chunk),
    "split": parts(torch.split),
    "tensor_split": parts(torch.tensor_split),
    "unbind": unbind,
    "cat": cat,
    "concat": cat,
    "stack": stack,
    "pad": pad,
    "interpolate": interpolate,
    "glu": _glu,
    "prelu": _prelu,
    **{name: _constant(getattr(torch, name)) for name in ("zeros_like", "ones_like", "full_like")},
    **{name: _constant(getattr(Tensor, name)) for name in ("new_zeros", "new_ones", "new_full", "new_tensor")},
    "embedding": _embedding,
    **dict.fromkeys(
        ("contiguous", "clone", "to", "float", "double", "type_as", "detach", "type", "cpu", "requires_grad"), _same
    ),
}
"""Name of an operation → function of its arguments that returns a signal."""

_ALIASES = {
    "radd": "add",
    "iadd": "add",
    "isub": "sub",
    "imul": "mul",
    "rmul": "mul",
    "truediv": "div",
    "true_divide": "div",
    "divide": "div",
    "itruediv": "div",
    "rtruediv": "rdiv",
    "subtract": "sub",
    "multiply": "mul",
    "negative": "neg",
    "clip": "clamp",
    "hardtanh_": "hardtanh",
    "concatenate": "cat",
    "swapdims": "transpose",
    "special_erf": "erf",
    "hard_swish": "hardswish",
    "rsub": "rsub",
}

_REFUSED = {"bool", "item", "float__", "tolist", "nonzero", "int", "index", "numpy"}

_ATTRIBUTES: dict[str, Any] = {
    "attribute device": torch.device("cpu"),
    "attribute is_cuda": False,
    "attribute is_meta": False,
    "attribute requires_grad": True,
    "attribute is_nested": False,
    "attribute is_quantized": False,
    "attribute is_sparse": False,
    "attribute T": lambda x: OPERATIONS["permute"](x, *reversed(range(x.dim()))),
    "attribute mT": lambda x: transpose(x, -2, -1),
    "attribute data": _same,
    "get_device": -1,
}

CUSTOM: dict[Any, Handler] = {}
