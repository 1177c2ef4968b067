"""Statistics over seeds: sample standard deviation (ddof 1), medians, paired differences, t intervals.

The unit of replication is the seed: each function takes one value per seed, and n counts the seeds whose value is
defined (finite).
"""

import bisect
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import polars as pl

MOST_SEEDS = 1_000_000  # where `seeds_to_decide` stops looking
POWER = 0.8  # the probability with which `seeds_to_decide` asks for a decision


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Mean and sample standard deviation over n seeds; NaN where undefined, with the reason."""

    mean: float
    std: float  # NaN for n < 2
    n: int
    reason: str | None = None  # why the mean is undefined


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A confidence interval of a mean; NaN where undefined, with the reason."""

    low: float = math.nan
    high: float = math.nan
    confidence: float
    reason: str | None = None

    @property
    def excludes_zero(self) -> bool:
        """Whether all of it lies on one side of 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Differences by seed, and the seeds without a difference: seed → reason."""

    differences: dict[int, float]
    without: dict[int, str]


def summarise(values: Iterable[float], reason: str = "no value is defined") -> Summary:
    """Summarise the finite values; `reason` is the reason where there is none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return Summary(mean=math.nan, std=math.nan, n=0, reason=reason)
    std = _or_nan(lambda: statistics.stdev(finite)) if len(finite) > 1 else math.nan
    return Summary(mean=_or_nan(lambda: statistics.mean(finite)), std=std, n=len(finite))


class ValueOrReason(Protocol):
    """A reading or an answer: a value, or NaN and the reason."""

    @property
    def value(self) -> float:
        """The value; NaN where it is undefined."""
        ...

    @property
    def reason(self) -> str | None:
        """Why the value is undefined, else None."""
        ...


def summarise_known(readings: Sequence[ValueOrReason]) -> Summary:
    """Summarise the defined readings; where there is none, the first reason is the reason."""
    reason = next((reading.reason for reading in readings if reading.reason), "no value is defined")
    return summarise((reading.value for reading in readings), reason)


def paired(values: Mapping[int, float], baseline: Mapping[int, float]) -> Pairs:
    """value − baseline for every seed where both are defined; the reason for every other seed."""
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
    """value − base, rounded to twelve digits of the larger one: equal differences of counts compare as equal."""
    size = max(abs(value), abs(base))
    return round(value - base, 12 - math.ceil(math.log10(size))) if size else 0.0


def t_interval(values: Iterable[float], confidence: float = 0.95) -> Interval:
    """mean ± t·s/√n with Student's t and n − 1 degrees of freedom; for paired differences, the paired interval.

    Undefined for n < 2, and where all values are equal: accuracies are counts, so a few may coincide by chance.
    """
    known = summarise(values)
    if known.n < 2:
        have = "there is no value" if known.n == 0 else "one value has no spread"
        return Interval(confidence=confidence, reason=f"an interval needs two seeds or more: {have}")
    if known.std == 0:
        return Interval(confidence=confidence, reason=_all_equal(known.n))
    half = t_quantile((1 + confidence) / 2, known.n - 1) * known.std / math.sqrt(known.n)
    low, high = known.mean - half, known.mean + half
    if not (math.isfinite(low) and math.isfinite(high)):
        return Interval(confidence=confidence, reason="overflow")
    return Interval(low=low, high=high, confidence=confidence)


def _all_equal(n: int) -> str:
    return f"all {n} values are the same, so their spread is unknown"


def cannot_decide(interval: Interval, n: int, possible: float) -> str:
    """A text where seeds are too few: the interval includes 0, and is of two seeds or wider than the possible range."""
    if interval.reason or interval.excludes_zero:
        return ""
    return f"n = {n} seeds cannot decide" if n == 2 or max(-interval.low, interval.high) > possible else ""


def possible_part(interval: Interval, possible: float) -> tuple[float, float]:
    """The ends of an interval of a difference whose size cannot exceed `possible`."""
    return max(interval.low, -possible), min(interval.high, possible)


def ratio_interval(above: Mapping[int, float], below: Mapping[int, float], confidence: float = 0.95) -> Interval:
    """The confidence interval of mean(above) ÷ mean(below) by Fieller's method, over the seeds that have both.

    Fieller (1954), "Some problems in interval estimation".  All ratios R that a paired t test of above − R·below does
    not reject:  (a − R b)² ≤ t² (v_aa − 2 R v_ab + R² v_bb), with the means a and b, the variances and the covariance
    of these means, and Student's t with n − 1 degrees of freedom.  It is exact for normal values; the delta method is
    its limit as v_bb → 0.  Undefined where the test does not tell mean(below) from 0: then no finite interval holds R.
    """
    seeds = sorted(above.keys() & below.keys())
    n = len(seeds)
    if n < 2:
        return t_interval([above[seed] for seed in seeds], confidence)
    a, b = (math.fsum(side[seed] for seed in seeds) / n for side in (above, below))

    def covariance(one: Mapping[int, float], mean: float, other: Mapping[int, float], its_mean: float) -> float:
        return math.fsum((one[seed] - mean) * (other[seed] - its_mean) for seed in seeds) / (n * (n - 1))

    v_aa, v_ab, v_bb = covariance(above, a, above, a), covariance(above, a, below, b), covariance(below, b, below, b)
    t2 = t_quantile((1 + confidence) / 2, n - 1) ** 2
    square, middle, constant = b * b - t2 * v_bb, a * b - t2 * v_ab, a * a - t2 * v_aa
    if not square > 0:
        reason = f"the denominator is not told from 0 by {n} seeds, so no finite interval holds the ratio"
        return Interval(confidence=confidence, reason=reason)
    if v_aa == v_bb == 0:
        return Interval(confidence=confidence, reason=_all_equal(n))
    half = math.sqrt(max(0.0, middle * middle - square * constant))
    return Interval(low=(middle - half) / square, high=(middle + half) / square, confidence=confidence)


def t_chance(values: Iterable[float]) -> float:
    """The two-sided p-value of Student's t test that the mean is 0; NaN without a spread."""
    from scipy.special import stdtr  # type: ignore[import-untyped]

    known = summarise(values)
    if known.n < 2 or not known.std > 0:
        return math.nan
    return 2 * float(stdtr(known.n - 1, -abs(known.mean) / known.std * math.sqrt(known.n)))


def holm(chances: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction for several tests: adjusted p-values."""
    ordered, adjusted, largest = sorted(chances, key=lambda key: chances[key]), {}, 0.0
    for rank, key in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - rank) * chances[key]))
        adjusted[key] = largest
    return adjusted


def seeds_to_decide(known: Summary, confidence: float = 0.95) -> int | None:
    """The smallest n at which the t interval excludes 0 with probability `POWER`, if mean and std are the true ones.

    None where no n does.
    """
    if not (abs(known.mean) > 0 and known.std > 0):
        return None
    effect = abs(known.mean) / known.std
    least = bisect.bisect_left(range(MOST_SEEDS + 1), True, lo=2, key=lambda n: t_power(effect, n, confidence) >= POWER)
    return least if least <= MOST_SEEDS else None


def t_power(effect: float, n: int, confidence: float = 0.95) -> float:
    """The probability that a t interval over n seeds lies on the true side of 0; `effect` is the true mean / std."""
    from scipy.special import nctdtr

    limit, away = t_quantile((1 + confidence) / 2, n - 1), effect * math.sqrt(n)
    missed = float(nctdtr(n - 1, away, limit))
    return float(away > limit) if math.isnan(missed) else 1 - missed  # scipy returns NaN below 1e-300


def t_quantile(probability: float, freedom: int) -> float:
    """A quantile of Student's t distribution."""
    from scipy.special import stdtrit  # importing scipy.stats takes five times as long

    return float(stdtrit(freedom, probability))


def over_seeds(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Mean, sample standard deviation (ddof 1), n and minimum (`least`) over seeds, for each combination of `by`.

    Expects one row per seed and combination.  Undefined values do not count.  `std` is null for n < 2; `mean` and
    `least` are null for n = 0.
    """
    value = pl.col("value").filter(pl.col("defined") & pl.col("value").is_finite())
    return (
        rows.group_by(*by)
        .agg(mean=value.mean(), std=value.std(ddof=1), n=value.len().cast(pl.Int64), least=value.min())
        .sort(*by)
    )


def _or_nan(estimate: Callable[[], float]) -> float:
    try:
        found = float(estimate())
    except OverflowError:
        return math.nan
    return found if math.isfinite(found) else math.nan


_DEVIATIONS, _LATEST = 6.0, 8  # of the noise; values whose median is the middle


def band_limit(values: Sequence[float], factor: float) -> float:
    """The upper end of where the next value of a noisy series usually lies.

    6 standard deviations of its noise above the median of the last 8 values, and `factor` times the median at least.
    A trend does not count as noise.
    """
    middle = statistics.median(values[-_LATEST:])
    return middle + max(_DEVIATIONS * noise_between(values), (factor - 1) * abs(middle))


def noise_between(values: Sequence[float]) -> float:
    """The standard deviation of a series around its trend, from differences between values that follow each other."""
    apart = statistics.median(map(abs, map(operator.sub, values[1:], values)))
    return 1.4826 * apart / math.sqrt(2)
