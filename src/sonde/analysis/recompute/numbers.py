"""Sums, norms and cosines of plain lists of numbers, each as its definition reads."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

Numbers = Sequence[float]


class Value(NamedTuple):
    """A metric's number, None where it is undefined, and from how many samples it was computed.

    `terms` is the mean size of what a mean was taken of: where they cancel, that is what rounding is relative to.
    `either` marks a number so near to what the arithmetic resolves that it may as well be undefined; `rounding` is
    by how much rounding alone may change it, where the definition knows.
    """

    number: float | None
    samples: int
    terms: float = 0.0
    either: bool = False
    rounding: float = 0.0


def finite(values: Numbers) -> bool:
    return all(map(math.isfinite, values))


def total(values: Numbers) -> float:
    return math.fsum(values) if finite(values) else math.nan


def mean(values: Numbers) -> float:
    return total(values) / len(values) if values else math.nan


def size(values: Numbers) -> float:
    """The mean of the absolute values."""
    return mean([abs(value) for value in values])


def median(values: Numbers) -> float:
    return statistics.median(values) if values and finite(values) else math.nan


def norm(a: Numbers) -> float:
    """√Σa², of the largest and the smallest numbers too."""
    return math.hypot(*a)


def rms(a: Numbers) -> float:
    return norm(a) / math.sqrt(len(a)) if a else math.nan


def cosine(a: Numbers, b: Numbers) -> float | None:
    """⟨a, b⟩/(‖a‖‖b‖); None where a vector is zero or not finite."""
    lengths = norm(a), norm(b)
    if not all(0 < length < math.inf for length in lengths):
        return None
    return total([(x / lengths[0]) * (y / lengths[1]) for x, y in zip(a, b, strict=True)])


def correlation(x: Numbers, y: Numbers) -> tuple[float, float] | None:
    """Pearson's, and the mean size of the products it is the mean of.

    None where one side has no spread beyond the rounding of its largest entry.
    """
    deviations = []
    for values in (x, y):
        largest = max(map(abs, values))
        if not largest > 0:
            return None
        shares = [value / largest for value in values]
        middle = mean(shares)
        centred = [share - middle for share in shares]
        if not rms(centred) > 4 * math.ulp(1):
            return None
        deviations.append([value / rms(centred) for value in centred])
    products = [a * b for a, b in zip(*deviations, strict=True)]
    return mean(products), size(products)
