"""Products of a signal with weights, or with another signal: linear maps, convolutions, matrix products."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sonde.core.errors import SondeError
from sonde.observe.predict.elementwise import Handler, add_constant, add_signals, scalar_value
from sonde.observe.predict.products import Products, Shape, contracted, labels_for
from sonde.observe.predict.signal import (
    Moments,
    Signal,
    make,
    mean_squared_correlation,
    result_of,
    undefined_signal,
    unknown_result,
)
from sonde.observe.predict.weights import weight_moments


def contraction(equation: str, a: Any, b: Any) -> Signal:
    """`einsum(equation, a, b)` of a signal with a weight or with another signal."""
    left, out = equation.split("->")
    la, lb = left.split(",")
    sizes = dict(zip(la, a.shape, strict=True)) | {
        label: n for label, n in zip(lb, b.shape, strict=True) if n > 1 or label not in la
    }
    _check_sizes(la, a, lb, b)
    shape = tuple(sizes[label] for label in out)
    if isinstance(a, Signal) and isinstance(b, Signal) and a.node.source is b.node.source:
        return undefined_signal(
            a.tape, shape, "a product of a tensor with itself has no moments here", [a.node, b.node]
        )
    signals = [x for x in (a, b) if isinstance(x, Signal)]
    fixed = {place: weight_moments(x) for place, x in enumerate((a, b)) if not isinstance(x, Signal)}

    def sides(inputs: list[Moments]) -> list[Moments]:
        rest = list(inputs)
        return [fixed[place] if place in fixed else rest.pop(0) for place in (0, 1)]

    summed = math.prod(n for label, n in sizes.items() if label not in out)

    def forward(inputs: list[Moments]) -> Moments:
        x, y = sides(inputs)
        return Moments(summed * x.mean * y.mean, contracted(x.products, y.products, equation, sizes))

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        x, y = sides(inputs)
        found: list[Products | None] = []
        if 0 not in fixed:
            found.append(_back(gradient, y.products, f"{out},{lb}->{la}", sizes, a.shape))
        if 1 not in fixed:
            found.append(_back(gradient, x.products, f"{out},{la}->{lb}", sizes, b.shape))
        return found

    fresh = 0.0
    if fixed and signals[0].node.undefined is None:
        features = [axis for axis, label in enumerate(out) if label not in (lb if 0 in fixed else la)]
        fresh = 2 * mean_squared_correlation(forward([signals[0].node.moments]), shape, features, summed)
    made = make(signals, shape, forward, backward, fresh=fresh)
    if fixed and made.node.undefined is None:
        made.node.fresh_back = 2 * _independent_share(signals[0])
    return made


def _check_sizes(la: str, a: Any, lb: str, b: Any) -> None:
    """Refuse operands that do not fit each other, as torch does."""
    other = dict(zip(lb, b.shape, strict=True))
    for label, n in zip(la, a.shape, strict=True):
        if label in other and n != other[label] and 1 not in (n, other[label]):
            shapes = " and ".join("×".join(map(str, one.shape)) for one in (a, b))
            raise SondeError(f"shapes {shapes} cannot be multiplied: give the shape of a batch that the model takes")


def _independent_share(x: Signal) -> float:
    """The squared correlation of gradients that a random weight mixed: independent along the last axis."""
    return 1 / max(x.shape[-1], 1) if x.dim() else 1.0


def _back(gradient: Products, other: Products, equation: str, sizes: dict[str, int], shape: Sequence[int]) -> Products:
    """The gradient of one operand; indices that only it has are filled with what all their places share."""
    left, target = equation.split("->")
    known = "".join(label for label in target if label in left)
    found = contracted(gradient, other, f"{left}->{known}", sizes)
    for axis, label in enumerate(target):
        if label not in known:
            found = np.stack([found, found], axis)
    return found


def linear(x: Any, weight: Any, bias: Any = None) -> Signal:
    """x Wᵀ + b."""
    batch = labels_for(x.dim() - 1, "io")
    return with_bias(contraction(f"{batch}i,oi->{batch}o", x, weight), bias, fan=weight.shape[-1])


def with_bias(x: Signal, bias: Any, axis: int = -1, fan: int | None = None) -> Signal:
    """x plus a bias, by the distribution that the bias was drawn from."""
    if bias is None or scalar_value(bias) == 0:
        return x
    tail = [1] * (x.dim() - 1 - axis % x.dim())
    if isinstance(bias, Signal) or bias.dim() != 1:
        return add_signals(x, bias)
    mean, products = weight_moments(bias, fan)
    for _ in tail:
        products = np.stack([products, products], -1)
    return add_constant(x, bias.reshape([-1, *tail]), tuple(x.shape), Moments(mean, products))


def matmul(a: Any, b: Any) -> Any:
    """Batched matrix product."""
    if a.dim() == 1 or b.dim() == 1:
        return unknown_result(torch.matmul, "matmul of a vector", (a, b), {})
    batch = labels_for(max(a.dim(), b.dim()) - 2, "ikj")
    la, lb = batch[len(batch) - a.dim() + 2 :] + "ik", batch[len(batch) - b.dim() + 2 :] + "kj"
    return contraction(f"{la},{lb}->{batch}ij", a, b)


def einsum(equation: str, *operands: Any) -> Any:
    """A contraction of two tensors; other forms are unknown."""
    operands = tuple(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    equation = equation.replace(" ", "")
    if len(operands) != 2 or "->" not in equation or "." in equation:
        return unknown_result(torch.einsum, "einsum of this form", (equation, *operands), {})
    return contraction(equation, *operands)


def addmm(bias: Any, a: Any, b: Any, **_: Any) -> Signal:
    """bias + a b."""
    return with_bias(matmul(a, b), bias)


def convolution(function: Any) -> Handler:
    """The rule of a convolution: its taps, channels and groups."""

    def handler(
        x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
    ) -> Signal:
        result = result_of(function, (x, weight, None, stride, padding, dilation, groups), {})
        kernel, places, before = weight.shape[2:], result.shape[2:], x.shape[2:]
        inside = math.prod(
            _taps_inside(n, m, k, s, p, d)
            for n, m, k, s, p, d in zip(
                before,
                places,
                kernel,
                *(per_axis(one, len(kernel)) for one in (stride, padding, dilation)),
                strict=True,
            )
        )
        fan = weight[0].numel()
        return with_bias(_convolved(x, weight, tuple(result.shape), inside, groups), bias, 1, fan)

    return handler


def per_axis(value: Any, axes: int) -> tuple[int, ...]:
    """An option of a convolution for each spatial axis; "same" padding is −1."""
    if isinstance(value, str):
        return (-1,) * axes
    return tuple(value) if isinstance(value, list | tuple) and len(value) == axes else (_first(value),) * axes


def _first(value: Any) -> int:
    return int(value[0] if isinstance(value, list | tuple) else value)


def _taps_inside(n: int, m: int, kernel: int, stride: int, padding: int, dilation: int) -> float:
    """The mean number of taps of a window that lie inside the input, not in the padding."""
    if padding < 0:
        padding = (dilation * (kernel - 1)) // 2
    starts = np.arange(m)[:, None] * stride - padding + np.arange(kernel) * dilation
    return float(((starts >= 0) & (starts < n)).sum() / m)


def _convolved(x: Signal, weight: Tensor, shape: Shape, inside: float, groups: int) -> Signal:
    mean, square = _weight_statistics(weight)
    channels = x.shape[1] / groups
    fan_in, positions = channels * inside, math.prod(shape[2:]) / math.prod(x.shape[2:])
    fan_out = weight.shape[0] / groups * inside * positions
    other = mean**2

    def mixed(products: Products, fan: float) -> Products:
        """Along the channel axis: contributions of the same channel, and of the others through the mean weight."""
        same, rest = products.take(0, 1), products.take(1, 1)
        crossed = fan * same + fan * max(fan - 1, 0.0) * rest
        return np.stack([(square - other) * fan * same + other * crossed, other * crossed], 1)

    def forward(inputs: list[Moments]) -> Moments:
        return Moments(fan_in * mean * inputs[0].mean, mixed(inputs[0].products, fan_in))

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        return [mixed(gradient, fan_out)]

    fresh = 0.0
    if x.node.undefined is None:
        fresh = 2 * mean_squared_correlation(forward([x.node.moments]), shape, (1,), fan_in)
    made = make([x], shape, forward, backward, fresh=fresh)
    if made.node.undefined is None:
        made.node.fresh_back = 2 / x.shape[1]
    return made


def _weight_statistics(weight: Tensor) -> tuple[float, float]:
    known = weight_moments(weight)
    return known.mean, known.square
