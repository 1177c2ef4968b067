"""Elementwise functions, sums and products of signals."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sonde.core.errors import SondeError
from sonde.observe.predict.products import Products, Shape, average, empirical, expanded
from sonde.observe.predict.quadrature import Expectation, Pointwise, nodes, value_and_slope
from sonde.observe.predict.signal import (
    Moments,
    Node,
    Signal,
    identity,
    make,
    mean_squared_correlation,
    signals_in,
    undefined_signal,
)

Handler = Callable[..., Any]

MASKED = -1e4
"""A score below this is masked."""


def pointwise(x: Signal, function: Pointwise) -> Signal:
    """f(x), with f composed on the Gaussian entries that x is a function of."""
    node, root = x.node, x.node.source
    if node.undefined:
        return undefined_signal(x.tape, node.shape, node.undefined, [node])
    before = node.function if node.root is not None else identity
    composed = function if before is identity else lambda z: function(before(z))
    rule = Elementwise(composed)
    moments = rule.forward([root.moments])
    made = Node(node.shape, moments, [root], rule.backward, root=root, function=composed, allowed=node.allowed)
    if node is not root:
        made.operand = node
        made.local = lambda gradient: gradient * _slope_after(function, before, root.moments)
    share = mean_squared_correlation(root.moments, node.shape)
    return Signal.of(x.tape.add(made, rule.forward, rule.extra_variance(root.moments) * share), x.tape, x.dtype)


def gaussian(moments: Moments) -> tuple[float, float, Products]:
    """Mean, standard deviation and correlations of Gaussian entries with these moments."""
    variance = moments.square - moments.mean**2
    if not variance > 1e-14 * moments.square:
        return moments.mean, 0.0, np.ones_like(moments.products)
    return moments.mean, math.sqrt(variance), (moments.products - moments.mean**2) / variance


class Elementwise:
    """A function of Gaussian entries, integrated by quadrature."""

    def __init__(self, function: Pointwise) -> None:
        self._function = function
        self._known: dict[tuple[float, float], tuple[Products, Products]] = {}

    def _values(self, mean: float, std: float) -> tuple[Products, Products]:
        """The function and its derivative at the nodes, or at the mean where there is no spread."""
        if (mean, std) not in self._known:
            at = mean + std * nodes(mean, std)[0] if std > 0 else np.array([mean])
            self._known[mean, std] = value_and_slope(self._function, at)
        return self._known[mean, std]

    def forward(self, inputs: list[Moments]) -> Moments:
        """Mean and products of f(x)."""
        mean, std, rho = gaussian(inputs[0])
        values = self._values(mean, std)[0]
        if std == 0:
            return Moments(float(values[0]), np.full(rho.shape, float(values[0]) ** 2))
        expected = Expectation(values, mean, std)
        return Moments(expected.mean, expected.product(rho))

    def backward(self, gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        """The gradient at x: E[f'(x) f'(x')] times the gradient at f(x)."""
        mean, std, rho = gaussian(inputs[0])
        return [gradient * _square_slope(self._values(mean, std)[1], mean, std, rho)]

    def extra_variance(self, moments: Moments) -> float:
        """What the choice of entries adds to the variance of log E f(x)², beside that of the size of x."""
        mean, std, _ = gaussian(moments)
        if std == 0:
            return 0.0
        values, slopes = self._values(mean, std)
        expected = Expectation(values, mean, std)
        along = Expectation(values * slopes * (mean + std * nodes(mean, std)[0]), mean, std).mean
        if not expected.square > 0 or not math.isfinite(expected.fourth):
            return 0.0
        return max(expected.fourth / expected.square**2 - 1 - 2 * (along / expected.square) ** 2, 0.0)


def _square_slope(slopes: Products, mean: float, std: float, rho: Products) -> Products:
    if std == 0:
        return np.full(rho.shape, float(slopes[0]) ** 2)
    return Expectation(slopes, mean, std).product(rho)


def _slope_after(function: Pointwise, before: Pointwise, moments: Moments) -> Products:
    """E[f'(y) f'(y')] for y a function of Gaussian entries."""
    mean, std, rho = gaussian(moments)
    at = mean + std * nodes(mean, std)[0] if std > 0 else np.array([mean])
    return _square_slope(value_and_slope(function, value_and_slope(before, at)[0])[1], mean, std, rho)


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

    def forward(inputs: list[Moments]) -> Moments:
        x, y = (_aligned(a, axes)(one) for one in inputs)
        return Moments(x.mean + y.mean, x.products + y.products + 2 * x.mean * y.mean)

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        return [summed_gradient(gradient, shape, tuple(one.shape)) for one in (a, b)]

    return make([a, b], shape, forward, backward)


def add_constant(a: Signal, b: Tensor, shape: Shape, known: Moments | None = None) -> Signal:
    """A signal plus a tensor with values; very negative values are a mask."""
    allowed = None
    if bool((b < MASKED).any()):
        allowed, b = b > MASKED, torch.where(b < MASKED, torch.zeros_like(b), b)
    constant = (
        constant_moments(b, len(shape)) if known is None else Moments(known.mean, expanded(known.products, len(shape)))
    )

    def forward(inputs: list[Moments]) -> Moments:
        x = _aligned(a, len(shape))(inputs[0])
        return Moments(x.mean + constant.mean, x.products + constant.products + 2 * x.mean * constant.mean)

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        return [summed_gradient(gradient, shape, tuple(a.shape))]

    share = 0.0 if known is None or a.node.undefined else known.square / (known.square + a.node.moments.square)
    return make([a], shape, forward, backward, fresh=2 * share**2 / b.numel(), allowed=allowed)


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

    return make(signals, shape, forward, backward)
