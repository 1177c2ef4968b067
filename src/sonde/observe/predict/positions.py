"""Tokens that differ from each other: behind a causal mask, or a class token beside patches.

Products take the entries along an axis for alike.  Where they are not, a node also has a kernel: E[x_t x_t'] for every
pair of places along one axis, of the same sample and feature.  Its averages are the products', so the kernel adds how
they are distributed.  It matters for normalisation, which divides each token by its own size, and for attention, whose
rows average over other tokens.  An operation without a rule drops the kernel; tokens count as alike again.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from sonde.analysis.moments import Moments, Products, Shape, average

MOST = 256
"""The longest axis that has a kernel."""

EMPTY = 1e-6
"""A token whose mean square is this share of the mean, or less, is one of zeros."""

_MOST_UNEVEN = 30.0  # squared correlations of tokens, relative to the square of their mean

Kernel = tuple[int, Products]
"""The axis of the tokens, and a number for each pair of them."""

AxisMap = Callable[[int], int | None]
"""The axis of a result that an axis of its operands becomes; None where it is summed or mixed."""


def same_axis(axis: int) -> int | None:
    """Of an operation on each entry."""
    return axis


def averages(matrix: Products) -> tuple[float, float]:
    """The mean over tokens, and over pairs of different ones."""
    n, own = len(matrix), float(np.trace(matrix))
    return own / n, (float(matrix.sum()) - own) / max(n * (n - 1), 1)


def alike(products: Products, axis: int, n: int) -> Products:
    """The kernel of tokens that are alike."""
    own, other = _pair(products, axis)
    return np.full((n, n), other) + (own - other) * np.eye(n)


def fitted(matrix: Products, products: Products, axis: int, size: int, *, is_sum: bool = False) -> Products:
    """A kernel of the same form whose averages are those of the products; a sum adds the same to every token.

    Where samples and tokens are one axis, the products tell the mean square alone.
    """
    own, other = averages(matrix)
    new_own, new_other = _pair(products, axis)
    if is_sum and size == len(matrix):
        return matrix + (new_other - other) + (new_own - own - new_other + other) * np.eye(len(matrix))
    if size != len(matrix):
        return matrix * (new_own / own if own else 0.0)
    scale = (new_own - new_other) / (own - other) if abs(own - other) > 1e-12 * abs(own) else 0.0
    found = new_other + (matrix - other) * scale
    np.fill_diagonal(found, matrix.diagonal() * (new_own / own if own else 0.0))
    return found


def parted(matrix: Products, products: Products, axis: int, samples: int) -> tuple[Products, Products]:
    """Kernel and products where samples and tokens, which were one axis, are two again.

    The products have one number for both kinds of pairs.  The kernel knows that of tokens; the rest is of samples.
    """
    n, mixed = len(matrix), _pair(products, axis)[1]
    own = averages(matrix)[0]
    matrix = matrix * (float(products.flat[0]) / own if own else 0.0)
    found = with_averages(products, axis, matrix)
    if samples > 1:
        rest = (mixed * (samples * n - 1) - (n - 1) * averages(matrix)[1]) / (n * (samples - 1))
        place: list[int] = [0] * products.ndim
        for place[axis] in (0, 1):
            place[axis - 1] = 1
            found[tuple(place)] = rest
    return matrix, found


def with_averages(products: Products, axis: int, matrix: Products) -> Products:
    """Products whose averages over the tokens of one sample are those of the kernel."""
    found = products.copy()
    found.flat[0], found[_other(products, axis)] = averages(matrix)
    return found


def _pair(products: Products, axis: int) -> tuple[float, float]:
    return float(products.flat[0]), float(products[_other(products, axis)])


def _other(products: Products, axis: int) -> tuple[int, ...]:
    return tuple(int(place == axis) for place in range(products.ndim))


def equalised(matrix: Products, sizes: Products) -> Products:
    """The kernel after each token is divided by its own size, relative to their mean."""
    own = sizes.diagonal()
    scale = np.where(own > EMPTY * own.mean(), np.sqrt(own.mean() / np.maximum(own, 1e-300)), 0.0)
    return np.asarray(matrix * scale[:, None] * scale[None, :])


def joined(counts: Sequence[int], kernels: Sequence[Products], means: Sequence[float]) -> Products:
    """The kernel of tensors one after the other, which have their means in common."""
    level = np.repeat(means, counts)
    found, start = np.outer(level, level), 0
    for n, kernel in zip(counts, kernels, strict=True):
        found[start : start + n, start : start + n] = kernel
        start += n
    return found


def common_square(
    of: Sequence[Moments],
    sizes: Shape,
    features: Sequence[int],
    overlap: float,
    kernels: Sequence[Kernel | None] = (None, None),
) -> float:
    """The mean over all pairs of entries of the product of their correlations in two tensors of one shape.

    Random vectors of n entries have a mean squared correlation of 1/n even where their mean correlation is 0, and more
    behind several layers: the overlap.  It counts for pairs that are the same along the feature axes.
    """
    a, b = (_correlations(moments, moments.products) for moments in of)
    products, rest = a * b, np.sqrt((1 - a**2) * (1 - b**2)) * min(overlap, 1.0)
    known = next((kernel for kernel in kernels if kernel is not None and sizes[kernel[0]] == len(kernel[1])), None)
    if known is not None:
        both = [_correlations(one, _matrix(one, known, kernel)) for one, kernel in zip(of, kernels, strict=True)]
        same, other = averages(both[0] * both[1])
        place = tuple(int(axis == known[0]) for axis in range(products.ndim))
        products, rest = (np.moveaxis(one, known[0], 0).copy() for one in (products, rest))
        before = float(products[1].flat[0])
        products[1] *= other / before if 0 < other < _MOST_UNEVEN * before else 1.0
        products[0], rest[0] = products[0] * same, rest[0] * same
        products, rest = (np.moveaxis(one, 0, known[0]) for one in (products, rest))
        products[place] = other
    alike = tuple(0 if axis in features else slice(None) for axis in range(products.ndim))
    products[alike] += rest[alike]
    return float(average(products, sizes, range(len(sizes))).flat[0])


def _matrix(of: Moments, known: Kernel, kernel: Kernel | None) -> Products:
    """Its kernel, which may be that of an operand of another size, or the kernel of tokens that are alike."""
    if kernel is None or kernel[0] != known[0] or not kernel[1].any():
        return alike(of.products, known[0], len(known[1]))
    return np.asarray(kernel[1] * (of.square / averages(kernel[1])[0]))


def _correlations(of: Moments, products: Products) -> Products:
    variance = of.square - of.mean**2
    return np.clip((products - of.mean**2) / variance, -1, 1) if variance > 0 else np.ones_like(products)


class Rows:
    """The rows of a softmax: uniform weights over the places that a mask leaves, and a share on the same place."""

    def __init__(self, open_places: Products, shares: Products) -> None:
        self.counts = open_places.sum(-1).clip(1)
        self.weights = open_places / self.counts[:, None]
        self.shares = np.broadcast_to(shares, self.counts.shape)
        self.gradient = np.ones_like(self.counts)  # mean square of the gradient at a row, relative to their mean

    @property
    def is_even(self) -> bool:
        """Whether all rows see as many places."""
        return bool(np.ptp(self.counts) == 0)

    def score_factors(self, values: Products, common: float) -> tuple[float, float]:
        """What the gradients at queries and keys have, relative to tokens that are alike and orthogonal.

        A row i passes to its query Σ_j (g_i·(v_j − v̄)) k_j ÷ n: values and keys are made of the same tokens, so it
        depends on the squared kernel of the tokens that the row sees, centred.  `common` is the mean squared
        correlation of two tokens, beside that of their mean correlation.
        """
        own, other = averages(values)
        even = np.full_like(values, other) + (own - other) * np.eye(len(values))
        found = [self._to_scores(kernel, tau) for kernel, tau in ((values, common), (even, 0.0))]
        query, key = (a / b if b > 0 else 1.0 for a, b in zip(*found, strict=True))
        return query, key

    def _to_scores(self, kernel: Products, common: float) -> tuple[float, float]:
        query = key = 0.0
        for row, n in enumerate(self.counts):
            places = np.flatnonzero(self.weights[row])
            seen = kernel[np.ix_(places, places)]
            seen = seen - seen.mean(0) - seen.mean(1)[:, None] + seen.mean()
            own, scale = seen.diagonal(), self.gradient[row] / n**2
            pairs = own.sum() ** 2 - (own**2).sum()
            query += scale * float((seen**2).sum() + common * pairs)
            key += scale * float(own.sum())
        return query, key

    def overlap(self) -> float:
        """The mean, over pairs of different rows, of the weight that both put on the same place."""
        n, gram = len(self.counts), self.weights @ self.weights.T
        return float(gram[0, 0]) if n == 1 else averages(gram)[1]

    def forward(self, kernel: Products, kept: float) -> Products:
        """The kernel of weighted means; `kept` multiplies the share, as dropout does."""
        found = self.weights @ kernel @ self.weights.T
        np.fill_diagonal(found, [self._row(row, kernel, kept) for row in range(len(self.counts))])
        return np.asarray(found)

    def _row(self, row: int, kernel: Products, kept: float) -> float:
        n, share = self.counts[row], self.shares[row]
        weight = self.weights[row]
        own = float(weight @ kernel.diagonal())
        every = float(weight @ kernel @ weight) * n**2
        other = (every - own * n) / max(n * (n - 1), 1)
        return float(kept * share * own + (1 - share) * other)

    def backward(self, kernel: Products, kept: float) -> Products:
        """The kernel of the gradient at what is weighted."""
        found = self.weights.T @ kernel @ self.weights
        for row, (n, share) in enumerate(zip(self.counts, self.shares, strict=True)):
            is_open = (self.weights[row] > 0).astype(float)
            pair = (1 - share) / max(n * (n - 1), 1) - n**-2
            found += kernel[row, row] * pair * np.outer(is_open, is_open)
            found[np.diag_indices_from(found)] += kernel[row, row] * is_open * (kept * share / n - n**-2 - pair)
        return np.asarray(found)


def reshaped_axis(before: Shape, after: Shape) -> AxisMap:
    """Which axis of a reshaped tensor an axis is, alone or as the inner part: so many entries precede what follows."""

    def found(axis: int) -> int | None:
        ends = math.prod(before[: axis + 1])
        return next((place for place, n in enumerate(after) if n > 1 and math.prod(after[: place + 1]) == ends), None)

    return found
