"""The same entries in another shape, parts of them, and several tensors in one."""

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sonde.analysis.moments import Moments, Products, Shape, expanded, reshaped
from sonde.observe.predict.elementwise import Handler, constant_moments, pointwise, summed_gradient
from sonde.observe.predict.positions import MOST, AxisMap, alike, joined, reshaped_axis
from sonde.observe.predict.signal import Signal, make, result_of, unknown_result
from sonde.observe.predict.tape import identity, kernel_at, unchanged


def _shaped(
    x: Signal,
    shape: Shape,
    there: Callable[[Products], Products],
    back: Callable[[Products], Products],
    axis_map: AxisMap | None = None,
    features: Shape = (),
) -> Signal:
    """The same entries in another shape; a function of Gaussian entries stays one."""
    root = x.node.root
    if root is not None and x.node.undefined is None:
        moved = _shaped(Signal.of(root, x.tape, x.dtype), shape, there, back, axis_map, features)
        made = pointwise(moved, x.node.function)
        made.node.operand, made.node.local = x.node, back
        return made

    def forward(inputs: list[Moments]) -> Moments:
        return Moments(inputs[0].mean, there(inputs[0].products))

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        return [back(gradient)]

    return make(
        [x],
        shape,
        forward,
        backward,
        allowed=x.node.allowed,
        loose=x.node.loose,
        radial_back=unchanged,
        axis_map=axis_map,
        features=features,
    )


def reshape(x: Signal, *sizes: Any, **kwargs: Any) -> Signal:
    """The same entries in another shape."""
    sizes = sizes or tuple(kwargs.values())
    if len(sizes) == 1 and isinstance(sizes[0], torch.dtype):
        return x
    wanted = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes
    before = tuple(x.shape)
    after = tuple(result_of(torch.reshape, (x, wanted), {}).shape)
    there, back = (lambda p: reshaped(p, before, after)), (lambda g: reshaped(g, after, before))
    features = _reshaped_features(x.node.features, before, after)
    return _shaped(x, after, there, back, reshaped_axis(before, after), features)


def _reshaped_features(features: Shape, before: Shape, after: Shape) -> Shape:
    """The axes of a reshaped tensor that hold features alone, such as heads."""
    spans = [(math.prod(before[:axis]), math.prod(before[: axis + 1]), axis in features) for axis in range(len(before))]
    found = []
    for axis, n in enumerate(after):
        start = math.prod(after[:axis])
        meets = [is_feature for low, high, is_feature in spans if low < start * n and high > start]
        if n > 1 and meets and all(meets):
            found.append(axis)
    return tuple(found)


def reshaping(function: Any) -> Handler:
    """An operation that reshapes, with its result's shape from torch."""

    def handler(x: Signal, *args: Any, **kwargs: Any) -> Signal:
        return reshape(x, tuple(result_of(function, (x, *args), kwargs).shape))

    return handler


def permute(x: Signal, *dims: Any, **kwargs: Any) -> Signal:
    """Axes in another order."""
    dims = dims or (kwargs["dims"],)
    wanted = tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], list | tuple) else dims
    order = [axis % x.dim() for axis in wanted]
    return _shaped(
        x,
        tuple(x.shape[axis] for axis in order),
        lambda p: p.transpose(order),
        lambda g: g.transpose(np.argsort(order)),
        order.index,
    )


def transpose(x: Signal, dim0: int = 0, dim1: int = 1) -> Signal:
    """Two axes exchanged."""
    order = list(range(x.dim()))
    order[dim0 % x.dim()], order[dim1 % x.dim()] = dim1 % x.dim(), dim0 % x.dim()
    return permute(x, order)


def movedim(x: Signal, source: Any, destination: Any) -> Signal:
    """An axis at another place."""
    places = np.empty(range(1, x.dim() + 1))
    return permute(x, [n - 1 for n in np.moveaxis(places, source, destination).shape])


def expand(x: Signal, *sizes: Any) -> Signal:
    """Entries repeated along axes of size 1."""
    wanted = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes
    before = tuple(x.shape)
    after = tuple(result_of(torch.Tensor.expand, (x, wanted), {}).shape)
    new = len(after) - len(before)
    kept = {axis: axis + new for axis, n in enumerate(before) if after[axis + new] == n}
    there, back = (lambda p: expanded(p, len(after))), (lambda g: summed_gradient(g, after, before))
    return _shaped(x, after, there, back, kept.get)


def roll(x: Signal, shifts: Any, dims: Any = None) -> Signal:
    """The same entries at other places."""
    moved = (
        range(x.dim()) if dims is None else [axis % x.dim() for axis in (dims if isinstance(dims, tuple) else [dims])]
    )
    return _shaped(x, tuple(x.shape), identity, identity, lambda axis: None if axis in moved else axis)


def repeat_interleave(x: Signal, repeats: int, dim: int | None = None, **_: Any) -> Signal:
    """Every entry repeated along an axis."""
    axis = (dim or 0) % x.dim()
    before = tuple(x.shape)
    shape = (*before[:axis], before[axis] * repeats, *before[axis + 1 :])
    near = (repeats - 1) / max(shape[axis] - 1, 1)

    def there(p: Products) -> Products:
        same, other = p.take([0], axis), p.take([1], axis)
        return np.concatenate([same, near * same + (1 - near) * other], axis)

    def back(g: Products) -> Products:
        same, other = g.take([0], axis), g.take([1], axis)
        return np.concatenate([repeats * same + repeats * (repeats - 1) * other, repeats**2 * other], axis)

    made = _shaped(x, shape, there, back, lambda place: None if place == axis else place)
    made.node.source.is_pooled = made.node.source.is_blurred = made.node.is_blurred = True
    return made


def index(x: Signal, places: Any) -> Any:
    """Slices, single places and new axes; an index by a tensor is unknown."""
    places = places if isinstance(places, tuple) else (places,)
    if any(isinstance(one, Tensor | list) for one in places):
        return unknown_result(operator.getitem, "indexing by a tensor", (x, places), {})
    after = tuple(result_of(operator.getitem, (x, places), {}).shape)
    if Ellipsis in places:
        at = places.index(Ellipsis)
        used = sum(1 for one in places if one is not None and one is not Ellipsis)
        places = (*places[:at], *[slice(None)] * (x.dim() - used), *places[at + 1 :])
    kinds: list[str] = []
    for one in places:
        kinds.append("new" if one is None else "drop" if isinstance(one, int) else "keep")
    kinds += ["keep"] * (x.dim() - sum(kind != "new" for kind in kinds))
    return _sliced(x, after, kinds, str(places))


def _sliced(x: Signal, after: Shape, kinds: Sequence[str], part: object) -> Signal:
    """A part of a tensor: its entries are not those of another part."""
    sizes = tuple(x.shape)

    def forward(inputs: list[Moments]) -> Moments:
        products, axis = inputs[0].products, 0
        for kind in kinds:
            if kind == "new":
                products = np.stack([products, products], axis)
            elif kind == "drop":
                products = np.asarray(products.take(0, axis))
                continue
            axis += 1
        return Moments(inputs[0].mean, products)

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        axis, place = 0, 0
        for kind in kinds:
            if kind == "new":
                gradient = np.asarray(gradient.take(0, axis))
                place += 1
                continue
            n = sizes[axis]
            m = 1 if kind == "drop" else after[place]
            if kind == "drop":
                gradient = np.stack([gradient, np.zeros_like(gradient)], axis)
            else:
                place += 1
            pair = m * (m - 1) / (n * (n - 1)) if n > 1 else 1.0
            gradient = np.concatenate([gradient.take([0], axis) * m / n, gradient.take([1], axis) * pair], axis)
            axis += 1
        return [gradient]

    made = make([x], after, forward, backward, axis_map=_kept_axes(kinds, sizes, after))
    made.node.is_positive = x.node.is_positive
    made.node.biases = frozenset((bias, part) for bias in x.node.biases)
    return made


def _kept_axes(kinds: Sequence[str], before: Shape, after: Shape) -> AxisMap:
    """Where the axes are that were kept whole."""
    ends = [place for place, kind in enumerate(kind for kind in kinds if kind != "drop") if kind == "keep"]
    kept = [axis for axis, kind in enumerate(kind for kind in kinds if kind != "new") if kind == "keep"]
    places = {axis: end for axis, end in zip(kept, ends, strict=True) if before[axis] == after[end]}
    return places.get


def select(x: Signal, dim: int, place: Any) -> Any:
    """One place along an axis."""
    return index(x, (*[slice(None)] * (dim % x.dim()), place))


def narrow(x: Signal, dim: int, start: int, length: int) -> Any:
    """A slice along an axis."""
    return index(x, (*[slice(None)] * (dim % x.dim()), slice(start, start + length)))


def parts(function: Any) -> Handler:
    """The rule of an operation that splits a tensor."""

    def handler(x: Signal, *args: Any, **kwargs: Any) -> tuple[Signal, ...]:
        found = result_of(function, (x, *args), kwargs)
        return tuple(_sliced(x, tuple(part.shape), ["keep"] * x.dim(), place) for place, part in enumerate(found))

    return handler


def unbind(x: Signal, dim: int = 0) -> tuple[Any, ...]:
    """Every place along an axis."""
    return tuple(select(x, dim, place) for place in range(x.shape[dim]))


def cat(tensors: Any, dim: int = 0, **kwargs: Any) -> Signal:
    """Several tensors one after the other: a mixture of their entries."""
    dim = kwargs.get("axis", dim)
    tensors = [x for x in tensors if x.numel()]  # a cache of keys and values starts empty
    if len(tensors) == 1:
        return tensors[0]  # type: ignore[no-any-return]
    axis = dim % tensors[0].dim()
    shape = tuple(result_of(torch.cat, (list(tensors), axis), {}).shape)
    signals = [x for x in tensors if isinstance(x, Signal)]
    fixed = {place: constant_moments(x, x.dim()) for place, x in enumerate(tensors) if not isinstance(x, Signal)}
    counts = [x.shape[axis] for x in tensors]
    n = sum(counts)

    def sides(inputs: list[Moments]) -> list[Moments]:
        rest = list(inputs)
        return [fixed[place] if place in fixed else rest.pop(0) for place in range(len(tensors))]

    def forward(inputs: list[Moments]) -> Moments:
        known = sides(inputs)
        same = sum(c / n * one.products.take(0, axis) for c, one in zip(counts, known, strict=True))
        mean = sum(c / n * one.mean for c, one in zip(counts, known, strict=True))
        within = sum(c * (c - 1) * one.products.take(1, axis) for c, one in zip(counts, known, strict=True))
        across = sum((c * one.mean for c, one in zip(counts, known, strict=True))) ** 2 - sum(
            (c * one.mean) ** 2 for c, one in zip(counts, known, strict=True)
        )
        other = (within + across) / max(n * (n - 1), 1)
        return Moments(float(mean), np.stack([np.asarray(same), np.asarray(other)], axis))

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        return [gradient for _ in inputs]

    made = make(signals, shape, forward, backward)
    if len(signals) == len(tensors):
        made.node.joined = axis, signals
    if made.node.undefined is None and axis < len(shape) - 1 and n <= MOST:
        known = sides([one.node.moments for one in signals])
        kernels = [
            kernel_at(one.node, axis, moments.products, one.node.kernel, count)
            if isinstance(one, Signal)
            else alike(moments.products, axis, count)
            for one, moments, count in zip(tensors, known, counts, strict=True)
        ]
        made.node.kernel = axis, joined(counts, kernels, [one.mean for one in known])
        ends = list(itertools.accumulate(counts))
        made.node.blocks = {
            id(one.node): (end - count, end)
            for one, count, end in zip(tensors, counts, ends, strict=True)
            if isinstance(one, Signal)
        }
    return made


def stack(tensors: Any, dim: int = 0) -> Signal:
    """Several tensors along a new axis."""
    return cat([x.unsqueeze(dim) for x in tensors], dim)


def pad(x: Signal, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    """Zeros around the entries."""
    result = result_of(functional.pad, (x, list(pad)), {})
    if mode != "constant" or value or any(n < 0 for n in pad):
        return unknown_result(functional.pad, f"pad of this kind ({mode})", (x, list(pad)), {})
    before, after = tuple(x.shape), tuple(result.shape)

    def forward(inputs: list[Moments]) -> Moments:
        products = inputs[0].products
        mean = inputs[0].mean * math.prod(before) / math.prod(after)
        for axis, (n, m) in enumerate(zip(before, after, strict=True)):
            if n != m:
                pair = n * (n - 1) / (m * (m - 1))
                products = np.concatenate([products.take([0], axis) * n / m, products.take([1], axis) * pair], axis)
        return Moments(mean, products)

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        return [gradient]

    made = make([x], after, forward, backward)
    front = list(pad)[::2]
    made.node.padded = x, [0] * (x.dim() - len(front)) + front[::-1]
    return made


def interpolate(x: Signal, size: Any = None, scale_factor: Any = None, mode: str = "nearest", **kwargs: Any) -> Any:
    """Nearest neighbours, by a whole factor."""
    result = result_of(functional.interpolate, (x, size, scale_factor, mode), kwargs)
    if mode != "nearest":
        return unknown_result(functional.interpolate, f"interpolate ({mode})", (x, size, scale_factor, mode), kwargs)
    found: Signal = x
    for axis in range(2, x.dim()):
        if result.shape[axis] % x.shape[axis]:
            return unknown_result(
                functional.interpolate, "interpolate by a fraction", (x, size, scale_factor, mode), kwargs
            )
        found = repeat_interleave(found, result.shape[axis] // x.shape[axis], axis)
    return found
