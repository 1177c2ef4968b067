"""Products of a signal with weights, or with another signal: linear maps, convolutions, matrix products."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sonde.analysis.moments import Moments, Products, Shape, contracted, labels_for
from sonde.core.errors import SondeError
from sonde.observe.predict.elementwise import Handler, add_constant, add_signals, constant_moments, scalar_value
from sonde.observe.predict.positions import MOST, AxisMap, Kernel, alike, common_square
from sonde.observe.predict.signal import Signal, make, result_of, undefined_signal, unknown_result
from sonde.observe.predict.tape import Backward, Forward, Node
from sonde.observe.predict.weights import FIXED, weight_moments

_UNEVEN = 0.1


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
    is_known = any(id(x) in FIXED for x in (a, b))  # a buffer, such as a graph
    moments_of = (lambda x: constant_moments(x, x.dim())) if is_known else weight_moments
    fixed = {place: moments_of(x) for place, x in enumerate((a, b)) if not isinstance(x, Signal)}

    def sides(inputs: list[Moments]) -> list[Moments]:
        rest = list(inputs)
        return [fixed[place] if place in fixed else rest.pop(0) for place in (0, 1)]

    def forward(inputs: list[Moments]) -> Moments:
        x, y = sides(inputs)
        return x.mixed(y, equation, sizes)

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        x, y = sides(inputs)
        found: list[Products | None] = []
        if 0 not in fixed:
            found.append(_back(gradient, y.products, f"{out},{lb}->{la}", sizes, a.shape))
        if 1 not in fixed:
            found.append(_back(gradient, x.products, f"{out},{la}->{lb}", sizes, b.shape))
        if not fixed and made.node.values is not None:
            factors = _of_shared_tokens(b.node, made.node)
            return [factor * np.asarray(part) for factor, part in zip(factors, found, strict=True)]
        return found

    if not fixed or signals[0].node.undefined is not None:
        weights = None if fixed else _softmax_behind(a.node)
        if weights is None or weights.scores is None or weights.rows is None or out[-2:] != la[-2] + lb[-1]:
            made = make(signals, shape, forward, backward)
            return made
        kept = a.node.moments.square / weights.moments.square
        weights.scores.values, weights.scores.rows = b.node, weights.rows
        made = make(signals, shape, forward, backward, rows=weights.rows, kept=kept)
        return made
    if is_known:
        if any(_is_uneven(x) for x in (a, b) if not isinstance(x, Signal)):
            why = "a product with a fixed matrix whose rows differ in size has no moments here"
            return undefined_signal(signals[0].tape, shape, why, [signals[0].node])
        return make(signals, shape, forward, backward)
    of_signal = lb if 0 in fixed else la
    new = [axis for axis, label in enumerate(out) if label not in of_signal]
    old = [axis for axis, label in enumerate(of_signal) if label not in out]
    summed = math.prod(n for label, n in sizes.items() if label not in out)
    fans = (summed, math.prod(shape[axis] for axis in new))
    kept_axes = lambda axis: out.index(of_signal[axis]) if of_signal[axis] in out else None  # noqa: E731
    return mixed_by_weights(signals[0], shape, forward, backward, (new, old), fans, kept_axes)


def _is_uneven(matrix: Tensor) -> bool:
    """Whether rows or columns of a fixed matrix differ in size, as those of a graph do."""
    squares = matrix.detach().double().square()
    sizes = [squares.sum(axis) for axis in range(squares.dim())]
    return any(float(size.std(correction=0)) > _UNEVEN * float(size.mean()) for size in sizes)


def _softmax_behind(node: Node) -> Node | None:
    """The softmax that this is, perhaps with dropout behind it."""
    while node.scores is None and len(node.parents) == 1:
        node = node.parents[0]
    return node if node.scores is not None else None


def _of_shared_tokens(keys: Node, scores: Node) -> tuple[float, float]:
    """What queries and keys get back because keys and values are made of the same tokens: a factor each."""
    values, rows = scores.values, scores.rows
    assert values is not None
    assert rows is not None
    axis = len(values.shape) - 2
    n = values.shape[axis]
    if n > MOST or len(rows.counts) > MOST:
        return 1.0, 1.0
    kernel = values.kernel[1] if values.kernel and values.kernel[0] == axis else alike(values.moments.products, axis, n)
    return rows.score_factors(kernel, math.sqrt(keys.overlap * values.overlap))


def _moved(kernel: Kernel | None, axis_map: AxisMap | None) -> Kernel | None:
    axis = None if kernel is None or axis_map is None else axis_map(kernel[0])
    return None if kernel is None or axis is None else (axis, kernel[1])


def mixed_by_weights(
    x: Signal,
    shape: Shape,
    forward: Forward,
    backward: Backward,
    axes: tuple[Any, Any],
    fans: tuple[float, float],
    axis_map: AxisMap | None = None,
) -> Signal:
    """A signal that random weights make: of new features from old ones (`axes`), and so many terms each (`fans`)."""
    moments, sizes, node = x.node.moments, tuple(x.shape), x.node
    varied = (1 - moments.mean**2 / moments.square) ** 2 if moments.square else 0.0
    overlap = x.node.overlap * varied + 1 / fans[0]
    made_of = forward([moments])
    fresh = 2 * common_square((made_of, made_of), shape, axes[0], overlap, [_moved(node.kernel, axis_map)] * 2)

    def through(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        """A feature with large weights was divided by them: E w²/σ² has no part of what E σ⁻² gains from them."""
        lost = 1 + 2 / fans[0] if made.node.is_scaled_back else 1.0
        return [None if part is None else part / lost for part in backward(gradient, inputs)]

    known: dict[str, Any] = {"fan": fans[0], "features": tuple(axes[0]), "axis_map": axis_map}
    known["sizes"] = varied * (x.node.sizes + x.node.loose / fans[0])
    made = make([x], shape, forward, through, fresh=fresh, overlap=overlap, **known)
    made.node.biases = frozenset()

    def fresh_back(gradient: Products, before: float) -> tuple[float, float]:
        part = backward(gradient, [moments])[0]
        after = before + 1 / max(fans[1], 1.0)
        own = made.node.gradient_kernel
        back = next((axis for axis in range(len(sizes)) if own and axis_map and axis_map(axis) == own[0]), None)
        kernel = None if own is None or back is None else (back, own[1])
        back_moments = Moments(0.0, np.asarray(part))
        return 2 * common_square((back_moments, back_moments), sizes, axes[1], after, [kernel] * 2), after

    made.node.fresh_back = fresh_back
    return made


def _check_sizes(la: str, a: Any, lb: str, b: Any) -> None:
    """Refuse operands that do not fit each other, as torch does."""
    other = dict(zip(lb, b.shape, strict=True))
    for label, n in zip(la, a.shape, strict=True):
        if label in other and n != other[label] and 1 not in (n, other[label]):
            shapes = " and ".join("×".join(map(str, one.shape)) for one in (a, b))
            raise SondeError(f"shapes {shapes} cannot be multiplied: give the shape of a batch that the model takes")


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
    made = add_constant(x, bias.reshape([-1, *tail]), tuple(x.shape), Moments(mean, products))
    made.node.biases |= {id(bias)}
    return made


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
        kernel, places = weight.shape[2:], result.shape[2:]
        options = [per_axis(one, len(kernel)) for one in (stride, padding, dilation)]
        if x.node.padded is not None and x.node.padded[0].shape[:2] == x.shape[:2]:  # zeros count as padding here
            x, front = x.node.padded
            options[1] = tuple(own + zeros for own, zeros in zip(options[1], front[2:], strict=True))
        before = x.shape[2:]
        taps = [_taps(*one) for one in zip(before, places, kernel, *options, strict=True)]
        fan = weight[0].numel()
        channels = x.shape[1] // groups, weight.shape[0] // groups
        return with_bias(_convolved(x, weight, tuple(result.shape), taps, channels), bias, 1, fan)

    return handler


def transposed_convolution(function: Any) -> Handler:
    """The rule of a transposed convolution: taps and channels of the convolution that it is the transpose of."""

    def handler(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Signal:
        result = result_of(function, (x, weight, None, stride, padding, output_padding, groups, dilation), {})
        kernel, places, before = weight.shape[2:], result.shape[2:], x.shape[2:]
        options = (per_axis(one, len(kernel)) for one in (stride, padding, dilation))
        taps = [_taps(*one)[::-1] for one in zip(places, before, kernel, *options, strict=True)]
        channels = weight.shape[0] // groups, weight.shape[1]
        made = _convolved(x, weight, tuple(result.shape), taps, channels)
        return with_bias(made, bias, 1, weight.shape[1] * math.prod(kernel))

    return handler


def per_axis(value: Any, axes: int) -> tuple[int, ...]:
    """An option of a convolution for each spatial axis; "same" padding is −1."""
    if isinstance(value, str):
        return (-1,) * axes
    return tuple(value) if isinstance(value, list | tuple) and len(value) == axes else (_first(value),) * axes


def _first(value: Any) -> int:
    return int(value[0] if isinstance(value, list | tuple) else value)


def _taps(n: int, m: int, kernel: int, stride: int, padding: int, dilation: int) -> tuple[Products, Products]:
    """The mean number of taps that one place has, and that two different places have in common, forward and back.

    Taps that lie in the padding do not count: two places at opposite edges share fewer than one place has.
    """
    if padding < 0:
        padding = (dilation * (kernel - 1)) // 2
    reach = np.zeros((m, n, kernel))
    for tap in range(kernel):
        at = np.arange(m) * stride - padding + tap * dilation
        inside = (at >= 0) & (at < n)
        reach[np.arange(m)[inside], at[inside], tap] = 1
    return _in_common(reach.sum(1)), _in_common(reach.sum(0))


def _in_common(taps: Products) -> Products:
    """Of places × taps: the mean count of one place, and the mean that two places share."""
    n = len(taps)
    own = float((taps**2).sum() / n)
    return np.array([own, own if n == 1 else (float((taps.sum(0) ** 2).sum()) / n - own) / (n - 1)])


def _convolved(
    x: Signal, weight: Tensor, shape: Shape, taps: Sequence[Sequence[Products]], channels: tuple[int, int]
) -> Signal:
    """A signal after a convolution; `channels` are those that one output reads and that one input feeds."""
    known = weight_moments(weight)
    mean, square, other = known.mean, known.square, known.mean**2
    in_row = float(known.products[0].flat[-1])  # of two entries of one output's weights

    def mixed(products: Products, way: int) -> Products:
        """Along the channel axis: contributions of the same channel, and of the others through the mean weight."""
        fan = channels[way] * functools.reduce(np.multiply.outer, [tap[way] for tap in taps])
        own = float(fan.flat[0])
        same, rest = products.take(0, 1), products.take(1, 1)
        crossed = fan * (same + max(own - 1, 0.0) * rest)
        alike = other if way else in_row
        return np.stack([(square - alike) * fan * same + alike * crossed, other * crossed], 1)

    fans = [c * math.prod(float(tap[way][0]) for tap in taps) for way, c in enumerate(channels)]

    def forward(inputs: list[Moments]) -> Moments:
        return Moments(fans[0] * mean * inputs[0].mean, mixed(inputs[0].products, 0))

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        return [mixed(gradient, 1)]

    if x.node.undefined is not None:
        return make([x], shape, forward, backward)
    return mixed_by_weights(x, shape, forward, backward, ((1,), (1,)), (fans[0], fans[1]))
