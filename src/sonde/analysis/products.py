"""Second moments of a random tensor whose entries are exchangeable along every axis.

A tensor of r axes is described by its mean and by 2^r numbers: `products[s_1, …, s_r]` is E[x(p) x(p')] for two entries
whose places differ along exactly the axes with s = 1.  `products[0, …, 0]` is the mean square; along the sample axis
`products` has what two samples have in common, along the feature axis the squared mean.  Sums, products of independent
tensors, contractions, means and centring are exact on this description.  Along an axis of size 1, and along one that
was expanded, both numbers are the same.  Needs no torch.
"""

import math
import string
from collections.abc import Iterable, Iterator, Sequence
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


def contracted(
    a: Products, b: Products, labels: str, sizes: dict[str, int], weights: dict[str, float] | None = None
) -> Products:
    """Products of `einsum(labels, x, y)` for independent x and y.

    A contracted index of size n pairs n entries with themselves and n(n − 1) with others.  `weights` replaces n
    where fewer entries are summed, as at the edges of a convolution.
    """
    inputs, out = labels.split("->")
    terms, operands = inputs.split(","), [a, b]
    for label in sorted({*inputs} - {*out, ","}):
        n = (weights or {}).get(label, sizes[label])
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
