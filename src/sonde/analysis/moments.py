"""Moments of random tensors, and functions of Gaussian entries.  Needs no torch.

A tensor of r axes, whose entries are exchangeable along every axis, is described by its mean and by 2^r numbers:
`products[s_1, …, s_r]` is E[x(p) x(p')] for two entries whose places differ along exactly the axes with s = 1.
`products[0, …, 0]` is the mean square; along the sample axis `products` has what two samples have in common, along the
feature axis the squared mean.  Sums, products of independent tensors, contractions, means and centring are exact on
this description.  Along an axis of size 1, and along one that was expanded, both numbers are the same.

Expectations over one variable: Gauss–Legendre in pieces between the places where common activations have kinks, so that
piecewise smooth functions are integrated to about 1e-12.  Over two correlated variables: E[f(u) f(v)] = Σ_n a_n² ρ^n,
with a_n the coefficients of f in normalised Hermite polynomials (Mehler's formula).
"""

import functools
import math
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Products = NDArray[np.float64]
Shape = tuple[int, ...]


class Moments(NamedTuple):
    """Mean and products of a tensor's entries."""

    mean: float
    products: Products

    @property
    def square(self) -> float:
        """The mean square of an entry."""
        return float(self.products.flat[0])

    def scaled(self, factor: float) -> "Moments":
        """Of the tensor times a factor."""
        return Moments(self.mean * factor, self.products * factor**2)

    def plus(self, other: "Moments") -> "Moments":
        """Of the sum with an independent tensor: their means are all that they have in common."""
        products = self.products + other.products + 2 * self.mean * other.mean
        return Moments(self.mean + other.mean, products)

    def mixed(self, other: "Moments", labels: str, sizes: dict[str, int]) -> "Moments":
        """Of `einsum(labels, x, y)` with an independent tensor."""
        out = labels.split("->")[1]
        summed = math.prod(n for label, n in sizes.items() if label not in out)
        return Moments(summed * self.mean * other.mean, contracted(self.products, other.products, labels, sizes))


def average(products: Products, sizes: Shape, axes: Iterable[int]) -> Products:
    """Products of the mean over these axes; the axes stay, expanded."""
    for axis in axes:
        same, other = np.split(products, 2, axis)
        mixed = same / sizes[axis] + other * (1 - 1 / sizes[axis])
        products = np.concatenate([mixed, mixed], axis)
    return products


def centred(products: Products, sizes: Shape, axes: Iterable[int]) -> Products:
    """Products of the tensor minus its mean over these axes."""
    return products - average(products, sizes, axes)


def dropped(products: Products, axes: Iterable[int]) -> Products:
    """Products without these axes: of entries at the same place along them."""
    for axis in sorted(axes, reverse=True):
        products = np.asarray(products.take(0, axis))
    return products


def expanded(products: Products, axes: int) -> Products:
    """Products with leading axes until there are `axes` of them, as broadcasting adds them."""
    while products.ndim < axes:
        products = np.stack([products, products])
    return products


def contracted(a: Products, b: Products, labels: str, sizes: dict[str, int]) -> Products:
    """Products of `einsum(labels, x, y)` for independent x and y.

    A contracted index of size n pairs n entries with themselves and n(n − 1) with others.
    """
    inputs, out = labels.split("->")
    terms, operands = inputs.split(","), [a, b]
    for label in sorted({*inputs} - {*out, ","}):
        n = sizes[label]
        terms.append(label)
        operands.append(np.array([n, n * max(n - 1, 0)]))
    return np.asarray(np.einsum(f"{','.join(terms)}->{out}", *operands))


def labels_for(count: int, skip: str = "") -> str:
    """So many letters that are not in `skip`."""
    return "".join(letter for letter in string.ascii_letters if letter not in skip)[:count]


def reshaped(products: Products, before: Shape, after: Shape) -> Products:
    """Products of `x.reshape(after)`: axes that are merged share one pair of numbers, axes that are split repeat it."""
    place = 0
    for sizes, new in _groups(before, after):
        if [n for n in sizes if n != 1] == [n for n in new if n != 1]:
            products = _kept_sizes(products, place, sizes, new)
        else:
            products = _split(_merged(products, place, sizes), place, new)
        place += len(new)
    return products


def _groups(before: Shape, after: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """The shortest runs of axes that hold as many entries before as after."""
    left, right = list(before), list(after)
    while left or right:
        ins, outs = [left.pop(0)] if left else [], [right.pop(0)] if right else []
        while (m := math.prod(ins)) != (n := math.prod(outs)):
            if m < n:
                ins.append(left.pop(0))
            else:
                outs.append(right.pop(0))
        yield ins, outs


def _kept_sizes(products: Products, place: int, sizes: Sequence[int], new: Sequence[int]) -> Products:
    """Only axes of size 1 come or go."""
    for axis in reversed(range(len(sizes))):
        if sizes[axis] == 1:
            products = np.asarray(products.take(0, place + axis))
    for axis, n in enumerate(new):
        if n == 1:
            products = np.stack([products, products], place + axis)
    return products


def _merged(products: Products, place: int, sizes: Sequence[int]) -> Products:
    """One axis for several: entries at different places along any of them differ."""
    if not sizes:
        return np.stack([products, products], place)
    count = len(sizes)
    moved = np.moveaxis(products, range(place, place + count), range(count)).reshape(2**count, -1)
    weights = np.ones(1)
    for n in sizes:
        weights = np.concatenate([weights[:, None], weights[:, None] * (n - 1)], 1).reshape(-1)
    others = weights[1:].sum()
    other = moved[0] if others <= 0 else weights[1:] @ moved[1:] / others
    rest = [2] * (products.ndim - count)
    return np.moveaxis(np.stack([moved[0], other]).reshape([2, *rest]), 0, place)


def _split(products: Products, place: int, new: Sequence[int]) -> Products:
    """Several axes for one: places that differ along any of them are different entries."""
    same, other = (part.squeeze(place) for part in np.split(products, 2, place))
    result = np.stack([other] * 2 ** len(new), place)
    shape = [*same.shape[:place], *[2] * len(new), *same.shape[place:]]
    result = result.reshape(shape)
    index: list[Any] = [slice(None)] * place + [0] * len(new)
    result[tuple(index)] = same
    for axis, n in enumerate(new):
        if n == 1:
            first = result.take([0], place + axis)
            result = np.concatenate([first, first], place + axis)
    return result


Curve = Callable[[Products], tuple[Products, Products]]
"""x → f(x) and f'(x)."""

_KINKS = (-3.0, -1.0, 0.0, 1.0, 3.0, 6.0)
_REACH = 8.5  # standard deviations; what lies outside has a probability of 2e-17
_NODES, _LONGEST = 20, 2.0
_ORDERS = 48
_IMPROBABLE = 1e-6
_STEP = 1e-4  # of a correlation
_STEEPEST = 40.0  # variance of scores; above it one score takes everything
_SAME = 1e-9  # a correlation that is this close to 1 is 1


@functools.cache
def _legendre() -> tuple[Products, Products]:
    return np.polynomial.legendre.leggauss(_NODES)


@functools.lru_cache(64)
def nodes(mean: float, std: float) -> tuple[Products, Products]:
    """Places z of a standard Gaussian, and their weights, for functions of mean + std z."""
    kinks = [(kink - mean) / std for kink in _KINKS if abs(kink - mean) < _REACH * std]
    ends = sorted({-_REACH, _REACH, *kinks, *np.arange(-_REACH, _REACH, _LONGEST)})
    places, weights = _legendre()
    low, high = np.array(ends[:-1])[:, None], np.array(ends[1:])[:, None]
    z = ((high + low) / 2 + (high - low) / 2 * places).ravel()
    w = ((high - low) / 2 * weights).ravel() * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return z, w


@functools.lru_cache(64)
def _hermite(key: tuple[float, float]) -> Products:
    """Normalised Hermite polynomials 0 … _ORDERS at the nodes."""
    z, _ = nodes(*key)
    found = np.empty((_ORDERS + 1, z.size))
    found[0], found[1] = 1.0, z
    for n in range(1, _ORDERS):
        found[n + 1] = (z * found[n] - math.sqrt(n) * found[n - 1]) / math.sqrt(n + 1)
    return found


class Expectation:
    """E f(x), E f(x)^k and E f(x) f(x') for Gaussian x, x' of this mean and standard deviation.

    Where f is not defined (`rsqrt` below 0) it counts as 0, if that is improbable; else everything is NaN.
    """

    def __init__(self, values: Products, mean: float, std: float) -> None:
        _, w = nodes(mean, std)
        missing = ~np.isfinite(values)
        if missing.any() and w[missing].sum() < _IMPROBABLE:
            values = np.where(missing, 0.0, values)
        self.mean, self.square, self.fourth = (float(w @ values**k) for k in (1, 2, 4))
        self._coefficients = (_hermite((mean, std)) * w) @ values

    def product(self, rho: Products) -> Products:
        """E f(u) f(v) at these correlations; orders above the highest count as the highest."""
        squares = self._coefficients**2
        rest = max(self.square - squares.sum(), 0.0)
        orders = np.arange(_ORDERS + 1)
        series = (squares * np.clip(rho, -1, 1)[..., None] ** orders).sum(-1)
        found = np.asarray(series + rest * np.clip(rho, 0, 1) ** (_ORDERS + 1))
        found[rho > 1 - _SAME] = self.square
        return found


def gaussian(moments: Moments) -> tuple[float, float, Products]:
    """Mean, standard deviation and correlations of Gaussian entries with these moments."""
    variance = moments.square - moments.mean**2
    if not variance > 1e-14 * moments.square:
        return moments.mean, 0.0, np.ones_like(moments.products)
    return moments.mean, math.sqrt(variance), (moments.products - moments.mean**2) / variance


class Elementwise:
    """A function of Gaussian entries, integrated by quadrature."""

    def __init__(self, function: Curve) -> None:
        self._function = function
        self._known: dict[tuple[float, float], tuple[Products, Products]] = {}

    def _values(self, mean: float, std: float) -> tuple[Products, Products]:
        """The function and its derivative at the nodes, or at the mean where there is no spread."""
        if (mean, std) not in self._known:
            at = mean + std * nodes(mean, std)[0] if std > 0 else np.array([mean])
            self._known[mean, std] = self._function(at)
        return self._known[mean, std]

    def is_linear(self, moments: Moments) -> bool:
        """Whether f(x) is x times a number."""
        mean, std, _ = gaussian(moments)
        values, slopes = self._values(mean, std)
        at = mean + std * nodes(mean, std)[0] if std > 0 else np.array([mean])
        return bool(np.ptp(slopes) == 0 and np.allclose(values, slopes * at))

    def forward(self, inputs: list[Moments]) -> Moments:
        """Mean and products of f(x)."""
        mean, std, rho = gaussian(inputs[0])
        values = self._values(mean, std)[0]
        if std == 0:
            return Moments(float(values[0]), np.full(rho.shape, float(values[0]) ** 2))
        expected = Expectation(values, mean, std)
        return Moments(expected.mean, expected.product(rho))

    def backward(self, gradient: Products, inputs: list[Moments]) -> list[Products]:
        """The gradient at x: E[f'(x) f'(x')] times the gradient at f(x)."""
        mean, std, rho = gaussian(inputs[0])
        return [gradient * square_slope(self._values(mean, std)[1], mean, std, rho)]

    def mean_slope(self, moments: Moments) -> float:
        """E f'(x)."""
        mean, std, _ = gaussian(moments)
        slopes = self._values(mean, std)[1]
        return Expectation(slopes, mean, std).mean if std > 0 else float(slopes[0])

    def fresh(self, moments: Moments, sizes: Shape) -> float:
        """What the choice of entries adds to the variance of log E f(x)², beside that of the size of x."""
        mean, std, rho = gaussian(moments)
        if std == 0:
            return 0.0
        values, slopes = self._values(mean, std)
        return float(average(_excess(values, values * slopes, mean, std, rho), sizes, range(len(sizes))).flat[0])

    def fresh_back(self, moments: Moments, sizes: Shape, gradient: Products, overlap: float) -> tuple[float, float]:
        """What the choice of entries adds to the variance of log E f'(x)²; and how the overlap of gradients shrinks."""
        mean, std, rho = gaussian(moments)
        if std == 0 or not gradient.flat[0] > 0:
            return 0.0, overlap
        slopes = self._values(mean, std)[1]
        alike = 1 + 2 * np.clip(gradient / gradient.flat[0], -1, 1) ** 2
        excess = average(_excess(slopes, None, mean, std, rho) * alike, sizes, range(len(sizes)))
        passed = Expectation(slopes, mean, std).product(rho)
        kept = passed[_two_samples(rho)] / passed.flat[0] if passed.flat[0] > 0 else 0.0
        return max(float(excess.flat[0]), 0.0), overlap * float(kept) ** 2

    def transmission(self, moments: Moments) -> float:
        """The factor from a deviation of the correlation of two samples at x to that at f(x)."""
        mean, std, rho = gaussian(moments)
        if std == 0:
            return 0.0
        expected = Expectation(self._values(mean, std)[0], mean, std)
        at = float(np.clip(rho[_two_samples(rho)], 0, 1 - _STEP))
        low, high = expected.product(np.array([at, at + _STEP]))
        own = expected.square - expected.mean**2
        return float(high - low) / _STEP / own if own > 0 else 0.0


def _two_samples(products: Products) -> tuple[int, ...]:
    return (1, *[0] * (products.ndim - 1)) if products.ndim else ()


def _excess(values: Products, along: Products | None, mean: float, std: float, rho: Products) -> Products:
    """The relative covariance of f² at two entries, without the part that the size of x has; `along` is f f'."""
    squares = Expectation(values**2, mean, std)
    if not squares.mean > 0 or not math.isfinite(squares.square):
        return np.zeros_like(rho)
    found = squares.product(rho) / squares.mean**2 - 1
    if along is not None:
        by_size = Expectation(along * (mean + std * nodes(mean, std)[0]), mean, std).mean / squares.mean
        found = found - 2 * by_size**2 * np.clip(rho, -1, 1) ** 2
    return np.maximum(found, 0.0)


def square_slope(slopes: Products, mean: float, std: float, rho: Products) -> Products:
    """E f'(x) f'(x') of two normal numbers with these correlations; at std 0 both have the slope at the mean."""
    if std == 0:
        return np.full(rho.shape, float(slopes[0]) ** 2)
    return Expectation(slopes, mean, std).product(rho)


_LOG_TIMES = np.linspace(-40.0, 40.0, 481)


def participation(variance: float, counts: Products) -> tuple[Products, Products]:
    """E Σ_j A_j² of a softmax over n independent Gaussian scores of one variance, for each n; and what it passes back.

    Exact: 1/S^k = ∫ t^{k−1} exp(−tS) dt / Γ(k), so E Σ A_j^k is n/Γ(k) times ∫ t^{k−1} E[e^{ks − t e^s}]
    E[e^{−t e^s}]^{n−1} dt.
    An independent gradient of variance 1 at the weights has at all scores Σ A² − 2 Σ A³ + (Σ A²)² together.
    """
    if not variance > 0:
        return np.asarray(1 / counts), np.asarray((1 - 1 / counts) / counts)
    z, w = nodes(0.0, 1.0)
    score = math.sqrt(min(variance, _STEEPEST)) * z
    size, times = np.exp(score - score.max() / 2), np.exp(_LOG_TIMES)
    passed = np.exp(-times[:, None] * size)
    others, step = passed @ w, _LOG_TIMES[1] - _LOG_TIMES[0]
    own = {k: times**k * (passed * size**k @ w) for k in (2, 3, 4)}  # t from dt = t d log t
    found = []
    for n in counts:
        rest = step * n * others ** (n - 1)
        second, third, fourth = (float(own[k] @ rest) / math.gamma(k) for k in own)
        pairs = (n - 1) * float(own[2] ** 2 @ (step * n * others ** max(n - 2, 0))) / math.gamma(4)
        found.append((second, second - 2 * third + fourth + pairs))
    return np.array([a for a, _ in found]), np.array([max(b, 0.0) for _, b in found])


def critical_weight_std(function: Curve, bias_std: float = 0.0) -> float:
    """The σ_w at which a wide network f(Wh + b) of any depth keeps its gradient: σ_w² E[f'(√q z)²] = 1.

    q is the fixed point q = σ_w² E[f(√q z)²] + σ_b² (Schoenholz et al. 2017, arXiv:1611.01232).  W has entries
    N(0, σ_w²/fan_in).  For σ_b = 0 and tanh q is 0, and σ_w is 1.
    """
    low, high = 0.0, 1e4
    for _ in range(200):
        q = (low + high) / 2
        std = math.sqrt(q)
        values, slopes = function(std * nodes(0.0, std)[0]) if q > 0 else (np.zeros(1), np.ones(1))
        square, slope = (Expectation(one, 0.0, std).square for one in (values, slopes)) if q > 0 else (0.0, 1.0)
        if square / slope + bias_std**2 > q:
            low = q
        else:
            high = q
    return math.sqrt(1 / slope)
