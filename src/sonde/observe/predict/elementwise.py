"""Elementwise functions, sums and products of signals."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sonde.analysis.moments import (
    Elementwise,
    Moments,
    Products,
    Shape,
    average,
    expanded,
    gaussian,
    nodes,
    square_slope,
)
from sonde.core.errors import SondeError
from sonde.observe.predict.positions import Kernel, common_square, same_axis
from sonde.observe.predict.signal import Signal, make, signals_in, undefined_signal
from sonde.observe.predict.tape import SHARED_BIAS, Node, Pointwise, identity, unchanged
from sonde.observe.predict.weights import empirical

_ALIKE = 3.0  # mean squared correlation of two rows, relative to that of random ones

_GRID = torch.linspace(-64, 64, 129, dtype=torch.double)

Handler = Callable[..., Any]

MASKED = -50.0
"""A score below this is masked: e^-50 is nothing."""


def pointwise(x: Signal, function: Pointwise) -> Signal:
    """f(x), with f composed on the Gaussian entries that x is a function of."""
    node, root = x.node, x.node.source
    if node.undefined:
        return undefined_signal(x.tape, node.shape, node.undefined, [node])
    if node.is_positive and _keeps_positive(function):
        return x
    before = node.function if node.root is not None else identity
    composed = function if before is identity else lambda z: function(before(z))
    rule = curve(composed)
    moments = rule.forward([root.moments])
    made = Node(node.shape, moments, [root], rule.backward, root=root, function=composed, allowed=node.allowed)
    made.is_positive = bool((function(_GRID) >= 0).all())
    made.axis_map, made.passes = same_axis, lambda inputs: [rule.mean_slope(inputs[0])]
    if node is not root:
        made.operand = node
        made.local = lambda gradient: gradient * _slope_after(function, before, root.moments)
    made.sizes = root.sizes
    made.overlap = root.overlap * rule.transmission(root.moments) ** 2
    if rule.is_linear(root.moments):
        made.radial_back, made.loose = unchanged, root.loose
    made.fresh_back = lambda gradient, overlap: rule.fresh_back(root.moments, node.shape, gradient, overlap)
    return Signal.of(x.tape.add(made, rule.forward, rule.fresh(root.moments, node.shape)), x.tape, x.dtype)


def _keeps_positive(function: Pointwise) -> bool:
    """Whether f(x) = x where x is not negative, as for ReLU; a sum of such outputs is not Gaussian there."""
    return bool((function(_GRID[_GRID >= 0]) == _GRID[_GRID >= 0]).all())


def value_and_slope(function: Pointwise, x: Products) -> tuple[Products, Products]:
    """f and f' at these places, in float64."""
    with torch.enable_grad():
        at = torch.tensor(x, requires_grad=True)
        value = function(at)
        slope = torch.zeros_like(at)
        if value.requires_grad:
            slope = torch.autograd.grad(value.sum(), at)[0]
    return value.detach().numpy(), slope.numpy()


def curve(function: Pointwise) -> Elementwise:
    """The rule of a torch function of Gaussian entries."""
    return Elementwise(lambda x: value_and_slope(function, x))


def _slope_after(function: Pointwise, before: Pointwise, moments: Moments) -> Products:
    """E[f'(y) f'(y')] for y a function of Gaussian entries."""
    mean, std, rho = gaussian(moments)
    at = mean + std * nodes(mean, std)[0] if std > 0 else np.array([mean])
    return square_slope(value_and_slope(function, value_and_slope(before, at)[0])[1], mean, std, rho)


def elementwise(function: Callable[..., Tensor]) -> Handler:
    """The rule of an elementwise torch function."""

    def handler(x: Any, *args: Any, **kwargs: Any) -> Signal:
        kwargs = {key: value for key, value in kwargs.items() if key not in ("inplace", "_stacklevel", "dtype", "out")}
        if not isinstance(x, Signal) or signals_in([args, kwargs]):
            raise SondeError(f"{function.__name__} of several signals cannot be predicted")
        return pointwise(x, lambda z: function(z, *args, **kwargs))

    return handler


def scalar_value(value: Any) -> float | None:
    """The number that a constant stands for, if all its entries are the same."""
    if isinstance(value, int | float | bool):
        return float(value)
    if isinstance(value, Tensor) and not isinstance(value, Signal) and value.numel():
        first = float(value.flatten()[0])
        if math.isfinite(first) and bool((value == first).all()):
            return first
    return None


def constant_moments(value: Tensor, axes: int) -> Moments:
    """Moments of a tensor with values, with leading axes until there are so many."""
    mean, products = empirical(value)
    return Moments(mean, expanded(products, axes))


def _aligned(signal: Signal, axes: int) -> Callable[[Moments], Moments]:
    return lambda moments: Moments(moments.mean, expanded(moments.products, axes))


def summed_gradient(gradient: Products, out: Shape, shape: Shape) -> Products:
    """The gradient of an operand that was broadcast: summed over the places that it was repeated at."""
    while len(out) > len(shape):
        gradient, out = np.asarray((average(gradient, out, [0]) * out[0] ** 2).take(0, 0)), out[1:]
    for axis, (n, m) in enumerate(zip(out, shape, strict=True)):
        if m == 1 and n > 1:
            gradient = average(gradient, out, [axis]) * n**2
    return gradient


def binary(combine: Callable[[Tensor, Tensor], Tensor], kind: str) -> Handler:
    """The rule of a sum or product: with a number, a function of the same entries, or an independent tensor."""

    def handler(a: Any, b: Any, *rest: Any, alpha: float = 1.0, **_: Any) -> Signal:
        if alpha != 1:
            b = b * alpha
        numbers = scalar_value(a), scalar_value(b)
        if isinstance(a, Signal) and numbers[1] is not None and _fits(b, a):
            return pointwise(a, lambda z: combine(z, torch.tensor(numbers[1], dtype=z.dtype)))
        if isinstance(b, Signal) and numbers[0] is not None and _fits(a, b):
            return pointwise(b, lambda z: combine(torch.tensor(numbers[0], dtype=z.dtype), z))
        both = isinstance(a, Signal) and isinstance(b, Signal)
        if both and a.node.source is b.node.source and a.shape == b.shape:
            return _same_root(a, b, combine)
        return {"add": add_signals, "mul": multiply_signals, "sub": _sub, "div": _div}[kind](a, b)

    return handler


def _fits(constant: Any, signal: Signal) -> bool:
    return not isinstance(constant, Tensor) or np.broadcast_shapes(constant.shape, signal.shape) == signal.shape


def _same_root(a: Signal, b: Signal, combine: Callable[[Tensor, Tensor], Tensor]) -> Signal:
    root = Signal.of(a.node.source, a.tape)
    f, g = (x.node.function if x.node.root is not None else identity for x in (a, b))
    return pointwise(root, lambda z: combine(f(z), g(z)))


def _sub(a: Any, b: Any) -> Signal:
    return add_signals(a, -b)


def _div(a: Any, b: Any) -> Signal:
    return multiply_signals(a, 1 / b)


def add_signals(a: Any, b: Any) -> Signal:
    """The sum of independent tensors."""
    if not isinstance(a, Signal):
        a, b = b, a
    shape = np.broadcast_shapes(a.shape, b.shape)
    axes = len(shape)
    if not isinstance(b, Signal):
        return add_constant(a, b, shape)
    for x, mean in ((a, b), (b, a)):
        if (found := _with_own_mean(x, mean)) is not None:
            return found
    held = next((x for x, y in ((a, b), (b, a)) if _holds(y.node, x.node)), None)
    last, first = sorted((a.node, b.node), key=lambda node: -node.order)
    reaching = _without_weights(last)
    if held is None and reaching & _without_weights(first, min(reaching)):
        why = "a sum of two functions of one tensor, without weights between, has no moments here"
        return undefined_signal(a.tape, shape, why, [a.node, b.node])

    def forward(inputs: list[Moments]) -> Moments:
        x, y = (_aligned(a, axes)(one) for one in inputs)
        if held is None:
            return x.plus(y)
        of, whole = (x, y) if held is a else (y, x)  # E ab of a and b = a + r is E a² + E a E r
        return Moments(x.mean + y.mean, x.products + y.products + 2 * (of.products + of.mean * (whole.mean - of.mean)))

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        return [summed_gradient(gradient, shape, tuple(one.shape)) for one in (a, b)]

    own = [one.node.moments.square - one.node.moments.mean**2 for one in (a, b)]
    parts = [share * math.sqrt(one.node.overlap) for share, one in zip(own, (a, b), strict=True)]
    overlap = (sum(parts) / sum(own)) ** 2 if sum(own) > 0 else 0.0
    squares = [one.node.moments.square for one in (a, b)]

    def radial(whole: float) -> Sequence[float]:
        """A gradient without a part along a + b has one along a: that of b, which it must balance."""
        return [1 - (1 - whole) * share for share in shares]

    shares = [square / max(sum(squares), 1e-300) for square in squares]
    features = next((one.node.features for one in (b, a) if one.node.features and one.shape == shape), ())
    both = [_aligned(one, axes)(one.node.moments) for one in (a, b)]
    kernels = [one.node.kernel if one.shape == shape else None for one in (a, b)]
    common = common_square(both, shape, features, math.sqrt(a.node.overlap * b.node.overlap), kernels)
    fresh = _of_sum(both, own, common)
    fixed = sum(share**2 * (1 - one.node.loose) for share, one in zip(shares, (a, b), strict=True))
    return make(
        [a, b],
        shape,
        forward,
        backward,
        fresh=fresh,
        overlap=overlap,
        loose=1 - fixed,
        sizes=sum(share**2 * one.node.sizes for share, one in zip(shares, (a, b), strict=True)),
        radial_back=radial,
        axis_map=same_axis,
        is_sum=True,
        passes=lambda inputs: [1.0, 1.0],
    )


def _holds(node: Node, term: Node) -> bool:
    """Whether a node is a sum with this term, or a sum of such sums."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        parents = node.parents if node.is_sum and len(node.parents) > 1 else []
        if any(parent is term for parent in parents):
            return True
        waiting += [parent for parent in parents if parent.order > term.order]
    return False


def _without_weights(node: Node, first: int = 0) -> set[int]:
    """The tensors, from `first` on, that reach this one without weights: entry by entry, in sums and by pooling."""
    found = {node.order}
    waiting = [node]
    while waiting:
        node = waiting.pop()
        size = math.prod(node.shape)
        kept = node.is_sum or node.is_pooled or (len(node.parents) == 1 and math.prod(node.parents[0].shape) == size)
        for parent in node.parents if kept and not node.fan else ():
            if parent.order >= first and parent.order not in found:
                found.add(parent.order)
                waiting.append(parent)
    return found


def _with_own_mean(x: Signal, mean: Signal) -> Signal | None:
    """k (x + c · mean(x)), as in centring by hand (c = −1); None if the other operand is not a mean of x."""
    smoothed = mean.node.source.smoothed
    if smoothed is None or x.node.undefined:
        return None
    of, average_of = smoothed
    k, of_mean = _multiple(x.node, of), _multiple(mean.node, mean.node.source)
    if not k or of_mean is None:
        return None
    c = of_mean / k

    def mixed(products: Products) -> Products:
        return k**2 * (products + (2 * c + c**2) * average_of(products))

    def forward(inputs: list[Moments]) -> Moments:
        return Moments(k * inputs[0].mean * (1 + c), mixed(inputs[0].products))

    return make([Signal.of(of, x.tape, x.dtype)], x.shape, forward, lambda gradient, inputs: [mixed(gradient)])


def _multiple(node: Node, other: Node) -> float | None:
    """By which factor the entries of a node are those of another; None if they are not."""
    if node is other:
        return 1.0
    if node.source is not other.source:
        return None
    at = torch.linspace(-2, 2, 9, dtype=torch.double)
    values, of = ((one.function(at) if one.root is not None else at) for one in (node, other))
    factor = float((values * of).sum() / of.square().sum())
    return factor if torch.allclose(values, factor * of) else None


def _of_sum(both: Sequence[Moments], own: Sequence[float], common: float) -> float:
    """The variance of log E(a + b)² of E ab, which is not its mean in a draw."""
    total = both[0].plus(both[1]).square
    return 4 * math.prod(own) * common / total**2 if total > 0 else 0.0


def add_constant(a: Signal, b: Tensor, shape: Shape, known: Moments | None = None) -> Signal:
    """A signal plus a tensor with values; very negative values are a mask."""
    allowed = None
    if bool((b < MASKED).any()):
        allowed, b = b > MASKED, torch.where(b < MASKED, torch.zeros_like(b), b)
    constant = (
        constant_moments(b, len(shape)) if known is None else Moments(known.mean, expanded(known.products, len(shape)))
    )

    def forward(inputs: list[Moments]) -> Moments:
        return _aligned(a, len(shape))(inputs[0]).plus(constant)

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        return [summed_gradient(gradient, shape, tuple(a.shape))]

    share = 0.0 if known is None or a.node.undefined else known.square / (known.square + a.node.moments.square)
    fresh = 2 * share**2 / b.numel()
    options: dict[str, Any] = {"fresh": fresh, "allowed": allowed, "axis_map": same_axis, "is_sum": True}
    made = make([a], shape, forward, backward, **options, passes=lambda inputs: [1.0])
    if known is None and a.node.undefined is None:
        made.node.has_waves |= b.shape[-2:] == shape[-2:] and are_waves(b)
        made.node.is_biased = b.dim() > 0 and b.shape[-1] > 1 and bool((b != b[..., :1]).any())
    return made


def are_waves(x: Tensor) -> bool:
    """Whether known tokens are more alike than random ones, as positions that are waves."""
    if x.dim() < 2:
        return False
    rows = x.detach().double().reshape(-1, *x.shape[-2:])
    unit = functional.normalize(rows - rows.mean(-2, keepdim=True), dim=-1)
    return float((unit @ unit.mT).square().mean()) - 1 / x.shape[-2] > _ALIKE / x.shape[-1]


def multiply_signals(a: Any, b: Any) -> Signal:
    """The product of independent tensors."""
    if not isinstance(a, Signal):
        a, b = b, a
    shape = np.broadcast_shapes(a.shape, b.shape)
    axes = len(shape)
    signals = [x for x in (a, b) if isinstance(x, Signal)]
    constant = None if isinstance(b, Signal) else constant_moments(b, axes)

    def sides(inputs: list[Moments]) -> list[Moments]:
        known = [Moments(one.mean, expanded(one.products, axes)) for one in inputs]
        return known if constant is None else [*known, constant]

    def forward(inputs: list[Moments]) -> Moments:
        x, y = sides(inputs)
        return Moments(x.mean * y.mean, x.products * y.products)

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        x, y = sides(inputs)
        found = [summed_gradient(gradient * y.products, shape, tuple(a.shape))]
        return (
            found if constant is not None else [*found, summed_gradient(gradient * x.products, shape, tuple(b.shape))]
        )

    is_even = constant is not None and not _varies(b, a.node.kernel, axes)

    def passes(inputs: list[Moments]) -> Sequence[float]:
        x, y = sides(inputs)
        return [y.mean, x.mean]

    made = make(signals, shape, forward, backward, axis_map=same_axis if is_even else None, passes=passes)
    if constant is None and a.node.biases & b.node.biases:
        made.node.doubt = SHARED_BIAS
    return made


def _varies(constant: Tensor, kernel: Kernel | None, axes: int) -> bool:
    """Whether a tensor differs from token to token, as the angles of rotary embeddings do."""
    place = None if kernel is None else kernel[0] - axes + constant.dim()
    if place is None or place < 0 or constant.shape[place] == 1:
        return False
    return bool((constant != constant.narrow(place, 0, 1)).any())
