"""Means, pooling and dropout."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from sonde.analysis.gaussian import gaussian, nodes
from sonde.analysis.products import Moments, Products, Shape, average, dropped
from sonde.observe.predict.contractions import per_axis
from sonde.observe.predict.elementwise import value_and_slope
from sonde.observe.predict.positions import same_axis
from sonde.observe.predict.signal import Signal, make, result_of
from sonde.observe.predict.tape import Pointwise, identity, unchanged


def _axes(x: Signal, dim: Any) -> list[int]:
    if dim is None:
        return list(range(x.dim()))
    return [axis % x.dim() for axis in (dim if isinstance(dim, list | tuple) else [dim])]


def mean(x: Signal, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Signal:
    """The mean over axes."""
    axes = _axes(x, kwargs.get("axis", dim))
    sizes = tuple(x.shape)
    count = math.prod(sizes[axis] for axis in axes)
    shape = [1 if axis in axes else n for axis, n in enumerate(sizes) if keepdim or axis not in axes]

    def forward(inputs: list[Moments]) -> Moments:
        products = average(inputs[0].products, sizes, axes)
        return Moments(inputs[0].mean, products if keepdim else dropped(products, axes))

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        if not keepdim:
            for axis in sorted(axes):
                gradient = np.stack([gradient, gradient], axis)
        return [gradient / count**2]

    made = make([x], shape, forward, backward)
    if keepdim:
        made.node.mean_of, made.node.smoothed = (
            (x.node, axes),
            (x.node, lambda products: average(products, sizes, axes)),
        )
    return made


def total(x: Signal, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
    """The sum over axes."""
    axes = _axes(x, kwargs.get("axis", dim))
    return mean(x, axes, keepdim) * math.prod(x.shape[axis] for axis in axes)


def variance(x: Signal, dim: Any = None, *args: Any, keepdim: bool = False, **kwargs: Any) -> Any:
    """The variance over axes."""
    return ((x - mean(x, dim, True)) ** 2).mean(_axes(x, dim), keepdim=keepdim)


def average_pool(x: Signal, kernel: Any, stride: Any = None, *args: Any, **kwargs: Any) -> Signal:
    """Means over windows."""
    spatial = x.dim() - 2
    result = result_of(
        [functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d][spatial - 1],
        (x, kernel, stride, *args),
        kwargs,
    )
    return _pooled(x, tuple(result.shape), per_axis(kernel, spatial))


def adaptive_pool(x: Signal, output_size: Any) -> Signal:
    """Means over windows of equal size."""
    spatial = x.dim() - 2
    sizes = output_size if isinstance(output_size, list | tuple) else [output_size] * spatial
    after = [n if size is None else size for n, size in zip(x.shape[2:], sizes, strict=True)]
    kernel = [n // m for n, m in zip(x.shape[2:], after, strict=True)]
    return _pooled(x, (*x.shape[:2], *after), kernel)


def _pooled(x: Signal, shape: Shape, kernel: Sequence[int]) -> Signal:
    """Means over windows."""
    sizes = tuple(x.shape)

    def mixed(products: Products) -> Products:
        for axis, k in enumerate(kernel, 2):
            same, other = products.take([0], axis), products.take([1], axis)
            mean = same / k + other * (1 - 1 / k)
            products = np.concatenate([mean, mean if shape[axis] == 1 else other], axis)
        return products

    def forward(inputs: list[Moments]) -> Moments:
        return Moments(inputs[0].mean, mixed(inputs[0].products))

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        for axis, k in enumerate(kernel, 2):
            n = sizes[axis]
            same, other = gradient.take([0], axis), gradient.take([1], axis)
            near = (k - 1) / (n - 1) if n > 1 else 1.0
            covered = shape[axis] * k / n
            gradient = np.concatenate([same, near * same + (1 - near) * other], axis) * covered / k**2
        return [gradient]

    made = make([x], shape, forward, backward)
    if shape == sizes:
        made.node.smoothed = x.node, mixed
    return made


def max_pool(x: Signal, kernel: Any, stride: Any = None, *args: Any, **kwargs: Any) -> Signal:
    """The largest of k entries: exact for Gaussian entries with one common correlation, and monotone functions."""
    spatial = x.dim() - 2
    function = [functional.max_pool1d, functional.max_pool2d, functional.max_pool3d][spatial - 1]
    kwargs.pop("return_indices", None)
    result = result_of(function, (x, kernel, stride, *args), kwargs)
    shape, windows = tuple(result.shape), per_axis(kernel, spatial)
    root, k = x.node.source, math.prod(windows)
    node = x.node
    applied = node.function if node.root is not None else identity

    def forward(inputs: list[Moments]) -> Moments:
        return _largest(inputs[0], applied, k, spatial)

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        passed = gradient * math.prod(shape[2:]) / math.prod(x.shape[2:])
        return [passed * _passing(inputs[0], applied, k, spatial)]

    made = make([Signal.of(root, x.tape)], shape, forward, backward)
    made.node.operand, made.node.local = node, lambda gradient: gradient * math.prod(shape[2:]) / math.prod(x.shape[2:])
    return made


def _common(moments: Moments, spatial: int) -> tuple[float, float, float]:
    """Mean, common and own standard deviation of the entries of a window."""
    mean, std, rho = gaussian(moments)
    near = float(np.clip(rho[(0, 0, *[1] * spatial)], 0, 1))
    return mean, std * math.sqrt(near), std * math.sqrt(1 - near)


def _maximum_nodes(k: int) -> tuple[Products, Products]:
    """Places and weights of the largest of k standard Gaussians."""
    z, w = nodes(0.0, 1.0)
    return z, w * k * torch.special.ndtr(torch.tensor(z)).numpy() ** (k - 1)


def _largest(moments: Moments, function: Pointwise, k: int, spatial: int) -> Moments:
    mean, common, own = _common(moments, spatial)
    z, w = _maximum_nodes(k)
    s, v = nodes(0.0, 1.0)
    x = mean + common * s[:, None] + own * z[None, :]
    values = value_and_slope(function, x.ravel())[0].reshape(x.shape)
    inner = values @ w
    square, average_value = float(v @ (values**2 @ w)), float(v @ inner)
    shared = float(v @ inner**2)
    rho = gaussian(moments)[2]
    apart: tuple[Any, ...] = (..., *[1] * spatial)
    flat = (rho[apart] / max(float(rho[apart].flat[0]), 1e-12)).clip(0, 1)
    products = np.empty_like(rho)
    for index in np.ndindex(*rho.shape):
        place = index[: rho.ndim - spatial]
        part = float(flat[place])
        top = square if not any(index) else shared if not any(index[: rho.ndim - spatial]) else 0.0
        products[index] = top if top else average_value**2 + (shared - average_value**2) * part
    return Moments(average_value, products)


def _passing(moments: Moments, function: Pointwise, k: int, spatial: int) -> float:
    """E f'(x)² at the largest entry of a window."""
    mean, common, own = _common(moments, spatial)
    z, w = _maximum_nodes(k)
    s, v = nodes(0.0, 1.0)
    x = mean + common * s[:, None] + own * z[None, :]
    slopes = value_and_slope(function, x.ravel())[1].reshape(x.shape)
    return float(v @ (slopes**2 @ w))


def dropout(x: Any, p: float = 0.5, training: bool = True, *args: Any, **_: Any) -> Signal:
    """Entries are kept with probability 1 − p and scaled."""
    if not training or p == 0:
        return x  # type: ignore[no-any-return]

    def forward(inputs: list[Moments]) -> Moments:
        products = inputs[0].products.copy()
        products.flat[0] /= 1 - p
        return Moments(inputs[0].mean, products)

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        found = gradient.copy()
        found.flat[0] /= 1 - p
        return [found]

    options: dict[str, Any] = {"loose": x.node.loose, "radial_back": unchanged, "axis_map": same_axis}
    return make([x], x.shape, forward, backward, **options, passes=lambda inputs: [1.0])
