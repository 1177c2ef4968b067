"""Spreads over seeds, in one place: sample standard deviation (ddof 1), medians, paired differences, t intervals.

The unit of replication is the seed: one value per seed goes in, n counts the seeds whose value is defined.
"""

import bisect
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import polars as pl

MOST_SEEDS = 1_000_000
"""Nobody trains more."""

POWER = 0.8
"""How often so many seeds are to decide as `seeds_to_decide` asks for."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Mean and sample standard deviation over n seeds; NaN where undefined, and why."""

    mean: float
    std: float  # NaN for n < 2: one value has no spread
    n: int
    reason: str | None = None  # why there is no mean


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A confidence interval of a mean; NaN where undefined, and why."""

    low: float
    high: float
    confidence: float
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Differences by seed, and the seeds that have no difference: seed → why."""

    differences: dict[int, float]
    without: dict[int, str]


def summarise(values: Iterable[float], reason: str = "no value is defined") -> Summary:
    """Of the finite values; `reason` says why there is no mean when there are none."""
    finite = _finite(values)
    if not finite:
        return Summary(mean=math.nan, std=math.nan, n=0, reason=reason)
    mean, std = _exact(finite)
    return Summary(mean=mean, std=std, n=len(finite))


class ValueOrReason(Protocol):
    """A reading, or an answer: NaN where undefined, and why."""

    @property
    def value(self) -> float: ...
    @property
    def reason(self) -> str | None: ...


def summarise_known(readings: Sequence[ValueOrReason]) -> Summary:
    """Of those that are defined; where none is, the first reason is the reason."""
    reason = next((reading.reason for reading in readings if reading.reason), "no value is defined")
    return summarise((reading.value for reading in readings), reason)


def median(values: Iterable[float]) -> float:
    """The middle of the finite values, or the mean of the two middle ones; NaN where there are none."""
    finite = _finite(values)
    return _or_nan(lambda: statistics.median(finite)) if finite else math.nan


def paired(values: Mapping[int, float], baseline: Mapping[int, float]) -> Pairs:
    """value − baseline of every seed that has both, defined."""
    differences, without = {}, {}
    for seed in sorted(values.keys() | baseline.keys()):
        if seed not in baseline:
            without[seed] = "it has no partner in the baseline"
        elif seed not in values:
            without[seed] = "the baseline alone has it"
        elif not (math.isfinite(values[seed]) and math.isfinite(baseline[seed])):
            without[seed] = "a value is undefined"
        else:
            differences[seed] = _difference(values[seed], baseline[seed])
    return Pairs(differences=differences, without=without)


def _difference(value: float, base: float) -> float:
    """To twelve digits of the larger, so that equal differences of counts are equal, whatever their last bits."""
    size = max(abs(value), abs(base))
    return round(value - base, 12 - math.ceil(math.log10(size))) if size else 0.0


def t_interval(values: Iterable[float], confidence: float = 0.95) -> Interval:
    """mean ± t·s/√n, Student's t with n − 1 degrees of freedom; of paired differences, the paired interval.

    Undefined where all values are the same: accuracies are counts, so a few may coincide, which is no certainty.
    """
    known = summarise(values)
    if known.n < 2:
        have = "there is no value" if known.n == 0 else "one value has no spread"
        reason = f"an interval needs two seeds or more: {have}"
        return Interval(low=math.nan, high=math.nan, confidence=confidence, reason=reason)
    if known.std == 0:
        reason = f"all {known.n} values are the same, so their spread is unknown"
        return Interval(low=math.nan, high=math.nan, confidence=confidence, reason=reason)
    half = t_quantile((1 + confidence) / 2, known.n - 1) * known.std / math.sqrt(known.n)
    low, high = known.mean - half, known.mean + half
    if not (math.isfinite(low) and math.isfinite(high)):
        return Interval(low=math.nan, high=math.nan, confidence=confidence, reason="overflow")
    return Interval(low=low, high=high, confidence=confidence)


def t_chance(values: Iterable[float]) -> float:
    """How often chance puts a mean this far from 0, on either side, by Student's t; NaN without a spread."""
    from scipy.special import stdtr  # type: ignore[import-untyped]

    known = summarise(values)
    if known.n < 2 or not known.std > 0:
        return math.nan
    return 2 * float(stdtr(known.n - 1, -abs(known.mean) / known.std * math.sqrt(known.n)))


def holm(chances: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction of several tests: each chance as large as it is once all of them are looked at together."""
    ordered, adjusted, largest = sorted(chances, key=lambda key: chances[key]), {}, 0.0
    for rank, key in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - rank) * chances[key]))
        adjusted[key] = largest
    return adjusted


def seeds_to_decide(known: Summary, confidence: float = 0.95) -> int | None:
    """The least n at which the t interval excludes 0 with a probability of `POWER`, mean and s being the true ones.

    None where no number of seeds does.
    """
    if not (abs(known.mean) > 0 and known.std > 0):
        return None
    effect = abs(known.mean) / known.std
    least = bisect.bisect_left(range(MOST_SEEDS + 1), True, lo=2, key=lambda n: t_power(effect, n, confidence) >= POWER)
    return least if least <= MOST_SEEDS else None


def t_power(effect: float, n: int, confidence: float = 0.95) -> float:
    """How often a t interval over n seeds lies on the true side of 0, `effect` the true mean in standard deviations."""
    from scipy.special import nctdtr

    limit, away = t_quantile((1 + confidence) / 2, n - 1), effect * math.sqrt(n)
    missed = float(nctdtr(n - 1, away, limit))
    return float(away > limit) if math.isnan(missed) else 1 - missed  # NaN where it is below 1e-300


def t_quantile(probability: float, freedom: int) -> float:
    """Of Student's t distribution."""
    from scipy.special import stdtrit  # scipy.stats takes five times as long

    return float(stdtrit(freedom, probability))


def over_seeds(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Mean, sample standard deviation (ddof 1) and n over seeds, for every combination of `by`.

    One row per seed and combination is expected.  Undefined values do not count: n says how many did.
    `std` is null for n < 2, `mean` and `least` (the smallest value) are null for n = 0.
    """
    value = pl.col("value").filter(pl.col("defined") & pl.col("value").is_finite())
    return (
        rows.group_by(*by)
        .agg(mean=value.mean(), std=value.std(ddof=1), n=value.len().cast(pl.Int64), least=value.min())
        .sort(*by)
    )


def _finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _exact(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation, each rounded once: what `statistics` computes with fractions, but quicker.

    Floats are integers over a power of two, so the sums of values and squares are exact.
    """
    ratios = [float(value).as_integer_ratio() for value in values]
    n, unit = len(values), max(below for _, below in ratios)
    whole = [above * (unit // below) for above, below in ratios]
    total = sum(whole)
    mean = _or_nan(lambda: total / (n * unit))
    if n < 2:
        return mean, math.nan
    squares = n * sum(number * number for number in whole) - total * total
    return mean, _or_nan(lambda: _root(squares, n * (n - 1) * unit * unit))


def _root(above: int, below: int) -> float:
    """√(above/below): of its first 54 bits and more, the last one says whether anything follows."""
    shift = (above.bit_length() - below.bit_length() - 109) // 2
    above, below = (above, below << 2 * shift) if shift >= 0 else (above << -2 * shift, below)
    root = math.isqrt(above // below)
    root |= root * root * below != above
    return root << shift if shift >= 0 else root / (1 << -shift)


def _or_nan(estimate: Callable[[], float]) -> float:
    try:
        found = float(estimate())
    except OverflowError:
        return math.nan
    return found if math.isfinite(found) else math.nan
