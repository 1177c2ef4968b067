"""Normalisation by statistics of features, channels or batches."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from sonde.analysis.products import Moments, Products, Shape, average, centred
from sonde.observe.predict.elementwise import Handler, scalar_value
from sonde.observe.predict.positions import AxisMap
from sonde.observe.predict.shapes import cat
from sonde.observe.predict.signal import Signal, make, unknown_result
from sonde.observe.predict.tape import UNEVEN_CHANNELS, Node

_FEWEST_TERMS = 12  # of a channel whose size is predicted


def _normalised(
    x: Signal, axes: Sequence[int], eps: float, centre: bool, sizes: Shape | None = None, feature: int = 1
) -> Signal:
    sizes = sizes or tuple(x.shape)
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
        uneven = 1 + 2 * x.node.loose * _squared_correlation(
            products, sizes, axes, feature, x.node.overlap
        )  # E σ⁻² · E σ²
        return [(found - made.node.gradient_radial * along * products / variance) / variance * uneven]

    made = make(
        [x],
        x.shape,
        forward,
        backward,
        radial_back=lambda radial: [0.0],
        loose=0.0,
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
