"""The distribution that a weight was drawn from, as far as its values tell."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
from torch import Tensor

from sonde.analysis.moments import Moments, Products

_LIKELY = 3.0  # standard errors
_UNIFORM = 1.8  # fourth moment of a uniform distribution, relative to the squared variance
_ROUNDING = 1e-4
_SCALES: dict[int, float] = {}


FIXED: set[int] = set()
"""Tensors (`id`) that are no weights: buffers, whose values are the same in every draw."""


@contextmanager
def scaled(tensors: dict[int, float], fixed: Iterable[Tensor] = ()) -> Iterator[None]:
    """Predict as if these tensors (by `id`) were multiplied by a factor, and others fixed."""
    _SCALES.update(tensors)
    FIXED.update(map(id, fixed))
    try:
        yield
    finally:
        _SCALES.clear()
        FIXED.clear()


def weight_moments(weight: Tensor, fan: int | None = None) -> Moments:
    """Moments of independent entries with the mean and the spread of this weight.

    A mean within the error of its measurement is 0, and a spread within the error of a known scheme is that scheme's:
    one draw of a small weight is not its distribution.
    """
    mean, std = mean_and_std(weight, fan)
    factor = _SCALES.get(id(weight), 1.0)
    mean, std = mean * factor, std * factor
    products = np.full([2] * weight.dim(), mean**2)
    if is_centred(weight):
        products[0] = -(std**2) / (weight[0].numel() - 1)
    products.flat[0] = mean**2 + std**2
    for axis, n in enumerate(weight.shape):
        if n == 1:
            products = np.concatenate([products.take([0], axis)] * 2, axis)
    return Moments(mean, products)


def is_centred(weight: Tensor) -> bool:
    """Whether every row has mean 0, as after weight standardisation: then it takes the mean from its input."""
    if weight.dim() < 2 or weight[0].numel() < 2:
        return False
    rows = weight.detach().double().flatten(1)
    return bool(rows.any()) and bool(rows.mean(1).abs().max() < _ROUNDING * rows.square().mean().sqrt())


def mean_and_std(weight: Tensor, fan: int | None = None) -> tuple[float, float]:
    """Mean and standard deviation of the distribution that the entries come from; `fan` is that of a bias's layer."""
    values = weight.detach().double()
    n = values.numel()
    mean, square = float(values.mean()), float(values.square().mean())
    variance = max(square - mean**2, 0.0)
    if variance == 0:
        return mean, 0.0
    error = math.sqrt(variance / n)
    if abs(mean) < _LIKELY * error:
        mean, variance = 0.0, square
    std = math.sqrt(variance)
    fourth = float((values - mean).pow(4).mean()) / variance**2
    error = math.sqrt(max(fourth, _UNIFORM) - 1) / math.sqrt(4 * n)  # relative; few entries hide their fourth moment
    known = [scheme for scheme in _schemes(values, fan) if abs(scheme - std) < _LIKELY * error * max(scheme, std)]
    return mean, min(known, key=lambda scheme: abs(scheme - std), default=std)


def _schemes(values: Tensor, fan: int | None) -> list[float]:
    """Standard deviations of PyTorch's initialisations for a weight of this shape."""
    if values.dim() < 2:
        return [] if fan is None else [1 / math.sqrt(3 * fan)]
    inside = values[0, 0].numel()
    fan_in, fan_out = values.shape[1] * inside, values.shape[0] * inside
    return [
        1 / math.sqrt(3 * fan_in),
        1 / math.sqrt(fan_in),
        math.sqrt(2 / fan_in),
        math.sqrt(2 / fan_out),
        math.sqrt(2 / (fan_in + fan_out)),
        0.02,
        1.0,
    ]


def empirical(x: Tensor) -> tuple[float, Products]:
    """Mean and products of the entries of a tensor, each over the pairs that there are."""
    values = x.detach().double()
    means = _means(values)
    for axis, n in enumerate(values.shape):
        same, both = np.split(means, 2, axis)
        other = same if n == 1 else (n * both - same) / (n - 1)
        means = np.concatenate([same, other], axis)
    return float(values.mean()) if values.numel() else 0.0, means


def _means(values: Tensor) -> Products:
    """For each set of axes, the mean square of the mean over them."""
    found = np.empty([2] * values.dim())
    for index in np.ndindex(*found.shape):
        axes = [axis for axis, is_averaged in enumerate(index) if is_averaged]
        found[index] = float((values.mean(axes) if axes else values).square().mean())
    return found
