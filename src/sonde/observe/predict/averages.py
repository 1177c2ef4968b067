"""Means, pooling and dropout; normalisation by statistics of features, channels or batches."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from sonde.analysis.moments import Moments, Products, Shape, average, centred, dropped, gaussian, nodes
from sonde.observe.predict.contractions import per_axis
from sonde.observe.predict.elementwise import Handler, scalar_value, value_and_slope
from sonde.observe.predict.positions import AxisMap, averages, same_axis
from sonde.observe.predict.shapes import cat
from sonde.observe.predict.signal import Signal, make, result_of, undefined_signal, unknown_result
from sonde.observe.predict.tape import UNEVEN_CHANNELS, Node, Pointwise, identity, unchanged


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

    made = make([x], shape, forward, backward, sizes=x.node.overlap)
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


def average_pool(
    x: Signal,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Means over windows."""
    spatial = x.dim() - 2
    function = [functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d][spatial - 1]
    if ceil_mode or divisor_override:
        return unknown_result(function, "average pooling with ceil_mode or a divisor", (x, kernel, stride, padding), {})
    result = result_of(function, (x, kernel, stride, padding), {})
    weights = []
    for n, m, k, step, front in zip(
        x.shape[2:],
        result.shape[2:],
        *(per_axis(one, spatial) for one in (kernel, stride or kernel, padding)),
        strict=True,
    ):
        start = np.arange(m) * step - front
        inside = _windows(n, start, start + k)
        weights.append(inside / (k if count_include_pad else inside.sum(1, keepdims=True)))
    return _pooled(x, tuple(result.shape), weights)


def adaptive_pool(x: Signal, output_size: Any) -> Signal:
    """Means over windows that cover the input."""
    spatial = x.dim() - 2
    sizes = output_size if isinstance(output_size, list | tuple) else [output_size] * spatial
    after = [n if size is None else size for n, size in zip(x.shape[2:], sizes, strict=True)]
    weights = []
    for n, m in zip(x.shape[2:], after, strict=True):
        inside = _windows(n, np.arange(m) * n // m, -(-np.arange(1, m + 1) * n // m))
        weights.append(inside / inside.sum(1, keepdims=True))
    return _pooled(x, (*x.shape[:2], *after), weights)


def _windows(n: int, start: Products, end: Products) -> Products:
    """For each window, a row with 1 at the places that it covers."""
    places = np.arange(n)
    return np.asarray((places >= start[:, None]) & (places < end[:, None]), float)


def _pooled(x: Signal, shape: Shape, weights: Sequence[Products]) -> Signal:
    """Sums over windows along each spatial axis, with these weights (windows × places)."""

    def mixed(products: Products, matrices: Sequence[Products]) -> Products:
        for axis, matrix in enumerate(matrices, 2):
            same, other = products.take([0], axis), products.take([1], axis)
            shared, every = averages(matrix @ matrix.T), averages(np.outer(matrix.sum(1), matrix.sum(1)))
            parts = [same * a + other * (b - a) for a, b in zip(shared, every, strict=True)]
            products = np.concatenate([parts[0], parts[0] if len(matrix) == 1 else parts[1]], axis)
        return products

    def forward(inputs: list[Moments]) -> Moments:
        every = math.prod(float(matrix.sum(1).mean()) for matrix in weights)
        return Moments(inputs[0].mean * every, mixed(inputs[0].products, weights))

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        return [mixed(gradient, [matrix.T for matrix in weights])]

    is_blurred = any((matrix.astype(bool).sum(0) > 1).any() for matrix in weights)
    made = make([x], shape, forward, backward, is_pooled=True, is_blurred=is_blurred)
    if shape == tuple(x.shape):
        made.node.smoothed = x.node, lambda products: mixed(products, weights)
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
    if node.is_blurred:
        why = "max-pooling of places whose neighbours are alike, as behind windows that overlap, has no moments here"
        return undefined_signal(x.tape, shape, why, [node])
    applied = node.function if node.root is not None else identity

    def forward(inputs: list[Moments]) -> Moments:
        return _largest(inputs[0], applied, k, spatial)

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        passed = gradient * math.prod(shape[2:]) / math.prod(x.shape[2:])
        return [passed * _passing(inputs[0], applied, k, spatial)]

    is_blurred = k * math.prod(shape[2:]) > math.prod(x.shape[2:])
    made = make([Signal.of(root, x.tape)], shape, forward, backward, is_pooled=True, is_blurred=is_blurred)
    if node is not root:
        scale = math.prod(shape[2:]) / math.prod(x.shape[2:])
        made.node.operand, made.node.local = node, lambda gradient: gradient * scale
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


_FEWEST_TERMS = 12  # of a channel whose size is predicted


def _normalised(
    x: Signal, axes: Sequence[int], eps: float, centre: bool, sizes: Shape | None = None, feature: int = 1
) -> Signal:
    sizes = sizes or tuple(x.shape)
    is_mixed = feature in axes or 0 in axes  # statistics of several samples or places, not of a token
    kept_axis: AxisMap = lambda axis: None if axis in axes else axis  # noqa: E731

    def spread(inputs: list[Moments]) -> tuple[Products, float]:
        products = centred(inputs[0].products, sizes, axes) if centre else inputs[0].products
        return products, float(products.flat[0]) + eps

    def forward(inputs: list[Moments]) -> Moments:
        products, variance = spread(inputs)
        return Moments(0.0 if centre else inputs[0].mean / math.sqrt(variance), products / variance)

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        products, variance = spread(inputs)
        found = centred(gradient, sizes, axes) if centre else gradient
        along = average(gradient * products / variance, sizes, axes)  # what lies along the normalised output
        own = _squared_correlation(products, sizes, axes, feature, x.node.overlap if is_mixed else 0.0)
        uneven = 1 + 2 * (x.node.loose * own + (0.0 if is_mixed else x.node.sizes))  # E σ⁻² · E σ²
        return [(found - made.node.gradient_radial * along * products / variance) / variance * uneven]

    made = make(
        [x],
        x.shape,
        forward,
        backward,
        radial_back=lambda radial: [0.0],
        loose=0.0,
        sizes=0.0,
        axis_map=kept_axis,
        is_normalised=True,
    )
    return made


def _by_channel(x: Signal, axes: Sequence[int], eps: float) -> Signal:
    """Normalisation of each channel; channels of a concatenation have the statistics of the part that they are of."""
    if x.node.joined is None or x.node.joined[0] != 1 or x.node.undefined is not None:
        made = _normalised(x, axes, eps, True)
        if 0 < x.node.fan < _FEWEST_TERMS:
            made.node.doubt = UNEVEN_CHANNELS
        x.node.is_scaled_back = x.node.fan > 0
        return made
    parts = [_by_channel(part, axes, eps) for part in x.node.joined[1]]
    made = cat(parts, 1)
    variance = float(centred(x.node.moments.products, tuple(x.shape), axes).flat[0]) + eps
    made.node.operand, made.node.local = x.node, lambda gradient: gradient / variance
    return made


def _squared_correlation(products: Products, sizes: Shape, axes: Sequence[int], feature: int, overlap: float) -> float:
    """The mean squared correlation of entries that one statistic is made of: so much it differs between groups."""
    if not products.flat[0] > 0:
        return 0.0
    squares = np.moveaxis(np.clip(products / products.flat[0], -1, 1) ** 2, feature, 0).copy()
    squares[0] += (1 - squares[0]) * overlap
    return float(average(np.moveaxis(squares, 0, feature), sizes, axes).flat[0])


def by_hand(handler: Handler) -> Handler:
    """The rule of a product or quotient, which may be a normalisation: x · (mean(x²) + ε)^-½."""

    def handle(a: Any, b: Any, *rest: Any, **kwargs: Any) -> Any:
        for x, scale in ((a, b), (b, a)):
            if isinstance(x, Signal) and isinstance(scale, Signal):
                mean = scale.node.source.mean_of
                if mean is not None and (eps := _is_inverse_rms(x.node, scale.node, mean[0])) is not None:
                    return _normalised(x, mean[1], eps, False)
        return handler(a, b, *rest, **kwargs)

    return handle


def _is_inverse_rms(x: Node, scale: Node, squared: Node) -> float | None:
    """The ε of a scale (mean(x²) + ε)^-½, or None if it is another one."""
    at = torch.linspace(-2, 2, 9, dtype=torch.double)
    if scale.root is None or squared.source is not x.source or squared.root is None:
        return None
    values = at if x.root is None else x.function(at)
    if not torch.allclose(squared.function(at), values**2):
        return None
    inverse = scale.function(torch.tensor([1.0, 4.0], dtype=torch.double))
    eps = float(inverse[0] ** -2 - 1)
    return eps if -1e-12 < eps < 1 and abs(float(inverse[1]) - (4 + eps) ** -0.5) < 1e-9 else None


def _affine(x: Signal, weight: Any, bias: Any, axis: int) -> Signal:
    tail = [1] * (x.dim() - 1 - axis % x.dim())
    if weight is not None and scalar_value(weight) != 1:
        x = x * weight.reshape([*weight.shape, *tail])
    if bias is not None and scalar_value(bias) != 0:
        x = x + bias.reshape([*bias.shape, *tail])
    return x


def layer_norm(x: Signal, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Signal:
    """LayerNorm over the last axes."""
    axes = range(x.dim() - len(normalized_shape), x.dim())
    if tuple(x.shape[-len(normalized_shape) :]) != tuple(normalized_shape):
        raise ValueError(f"the last axes of {tuple(x.shape)} are not {tuple(normalized_shape)}")
    return _affine(_normalised(x, axes, eps, True), weight, bias, -1)


def rms_norm(x: Signal, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Signal:
    """RMSNorm over the last axes."""
    axes = range(x.dim() - len(normalized_shape), x.dim())
    return _affine(_normalised(x, axes, eps or 1e-7, False), weight, None, -1)


def batch_norm(
    x: Signal,
    mean: Any,
    var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Signal:
    """BatchNorm: by statistics of the batch in training, else by the stored ones."""
    known = next((one for one in (mean, weight) if one is not None), None)
    if known is not None and known.numel() != x.shape[1]:
        raise ValueError(f"{x.shape[1]} channels, where statistics have {known.numel()}")
    if training or mean is None:
        axes = [axis for axis in range(x.dim()) if axis != 1]
        return _affine(_by_channel(x, axes, eps), weight, bias, 1)
    scale = torch.rsqrt(var + eps)
    return _affine(_affine(x, scale, -mean * scale, 1), weight, bias, 1)


def group_norm(x: Signal, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Signal:
    """GroupNorm; groups are alike."""
    sizes = (x.shape[0], x.shape[1] // groups, *x.shape[2:])
    return _affine(_normalised(x, range(1, x.dim()), eps, True, sizes), weight, bias, 1)


def instance_norm(x: Signal, *_: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, **__: Any) -> Signal:
    """InstanceNorm over places."""
    return _affine(_by_channel(x, range(2, x.dim()), eps), weight, bias, 1)


def normalize(x: Signal, p: float = 2.0, dim: int = 1, eps: float = 1e-12, **_: Any) -> Any:
    """x ÷ ‖x‖ along an axis."""
    if p != 2:
        return unknown_result(functional.normalize, f"normalize with p={p}", (x,), {"p": p, "dim": dim})
    return _normalised(x, [dim % x.dim()], eps, False) * (1 / math.sqrt(x.shape[dim]))
