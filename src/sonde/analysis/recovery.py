"""The share of backprop's margin over frozen blocks that a rule recovers, and which quantities correlate with it.

The share is a ratio of means over seeds; its interval is Fieller's.  Correlations are taken within recipes: rules are
ranked among those of their own recipe, so that a difference between recipes makes no correlation.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sonde.analysis.audit import CONTROLLED, NUDGE_METRIC, STREAM_LABEL, Audit, RecipeAudit, RuleAudit, RunAudit
from sonde.analysis.questions import scale_free, since_init
from sonde.core.formatting import number
from sonde.core.run_ids import identity
from sonde.core.seed_statistics import Interval, Summary, ratio_interval, summarise
from sonde.metrics import symbol_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FEWEST_RULES = 5  # rules that a rank correlation needs
SHUFFLES = 9999
_YARDSTICKS = ("bp", "frozen")
"""The rules whose shares are 1 and 0."""

_OBSERVATION_KEYS = ("probes.", "log")
"""Keys of a recipe that change what is measured, not what is trained."""


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """A rule's share of backprop's margin over frozen blocks: (rule − frozen) ÷ (bp − frozen), means over seeds."""

    rule: str
    label: str
    by_seed: dict[int, float]  # where backprop is above frozen blocks
    without: dict[int, str]  # seeds that have no share of their own, and why
    share: Summary
    interval: Interval  # Fieller's
    test_error: float  # of the share of a single seed, from the finite test set; else NaN


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """An accuracy and the number of its test samples."""

    value: float
    samples: int

    @property
    def variance(self) -> float:
        """Binomial variance."""
        return self.value * (1 - self.value) / self.samples if self.samples else math.nan


def error_by_test_set(rule: Accuracy, bp: Accuracy, frozen: Accuracy) -> float:
    """The standard error of (rule − frozen) ÷ (bp − frozen) from the test samples alone.

    The three accuracies are taken as independent.  With R the share,
    √(var(rule) + R² var(bp) + (1 − R)² var(frozen)) ÷ (bp − frozen).  The variance over seeds is not included.
    """
    margin = bp.value - frozen.value
    if not margin > 0:
        return math.nan
    share = (rule.value - frozen.value) / margin
    variance = rule.variance + share**2 * bp.variance + (1 - share) ** 2 * frozen.variance
    return math.sqrt(variance) / margin


def recovered(recipe: RecipeAudit) -> list[Recovered]:
    """Every rule of a recipe except bp and frozen, the largest share first; those without a share last."""
    return sorted((one for one, _ in _pairs(recipe)), key=_rank)


def _rank(one: Recovered) -> tuple[bool, float]:
    return one.share.n == 0, -one.share.mean if one.share.n else 0.0


def _pairs(recipe: RecipeAudit) -> list[tuple[Recovered, RuleAudit]]:
    best, frozen = (_yardsticks(recipe, name) for name in _YARDSTICKS)
    rules = (rule for rule in recipe.rules if rule.rule not in _YARDSTICKS and rule.runs)
    return [(_recovered(rule, best, frozen), rule) for rule in rules]


def _yardsticks(recipe: RecipeAudit, name: str) -> list[RuleAudit]:
    """The rules of this name; of several, those without a penalty."""
    found = [rule for rule in recipe.rules if rule.rule == name]
    return [rule for rule in found if not rule.options.get("rule.penalty")] or found


def _recovered(rule: RuleAudit, best: Sequence[RuleAudit], frozen: Sequence[RuleAudit]) -> Recovered:
    """The share of a rule.  A seed without one has the reason in `without`."""
    margin = best[0].margin.by_seed if len(best) == 1 else {}
    why = f"there are {len(best)} backprops of this recipe" if best else "there is no backprop of this recipe"
    why = "backprop has no margin at this seed" if len(best) == 1 else why
    shares, without = {}, dict(rule.margin.without)
    for seed, points in rule.margin.by_seed.items():
        if seed not in margin:
            without[seed] = why
        elif margin[seed] <= 0:
            without[seed] = "backprop is not above frozen blocks"
        else:
            shares[seed] = points / margin[seed]
    unpaired = None if rule.margin.by_seed else rule.margin.reason
    reason = unpaired or next(iter(without.values()), "there is no run to pair")
    around = share_of_margin(rule.margin.by_seed, margin)
    return Recovered(
        rule=rule.rule,
        label=rule.label,
        by_seed=shares,
        without=without,
        share=summarise(around, reason),
        interval=ratio_interval(rule.margin.by_seed, margin),
        test_error=_error_of_one(rule, *best, *frozen) if len(around) == 1 else math.nan,
    )


def _error_of_one(*rules: RuleAudit) -> float:
    """The error of the seed that all three share; NaN where they share none or several."""
    seeds = set.intersection(*({one.run.seed for one in rule.runs} for rule in rules))
    if len(seeds) != 1 or len(rules) != 1 + len(_YARDSTICKS):
        return math.nan
    read = (one.run.at("test_acc", one.run.epochs) for rule in rules for one in rule.runs if one.run.seed in seeds)
    return error_by_test_set(*(Accuracy(value=one.value, samples=one.samples) for one in read))


def share_of_margin(gained: Mapping[int, float], margin: Mapping[int, float]) -> list[float]:
    """One value for each seed that has both.  Their mean is mean gain ÷ mean margin.

    A ratio of means, so that a seed with a small margin does not count for more than the others: with R the ratio,
    R + (gain − R margin) ÷ mean margin.  Nothing where there is no margin.
    """
    seeds = sorted(gained.keys() & margin.keys())
    base = summarise(margin[seed] for seed in seeds)
    if not base.n or base.mean <= 0:
        return []
    ratio = summarise(gained[seed] for seed in seeds).mean / base.mean
    return [ratio + (gained[seed] - ratio * margin[seed]) / base.mean for seed in seeds]


@dataclass(frozen=True, kw_only=True)
class RankCorrelation:
    """The rank correlation of a quantity with the share that a rule recovers, over rules, within recipes."""

    quantity: str
    correlation: float  # NaN where undefined, and `reason` says why
    chance: float  # how often shuffled rules correlate as strongly, in either direction
    least: float  # the smallest chance that this number of shuffles can find; 0 where all orders were tried
    given_stream: float  # partial correlation, given the ranks of ‖h_L‖ ÷ init
    n: int  # points: a rule in a recipe is one
    rules: int  # different rules among the points; those of one rule in several recipes are not independent
    recipes: int  # with two rules or more
    runs: int  # behind these means
    reason: str | None = None

    @property
    def said_chance(self) -> str:
        """The chance as text; ≤ where no shuffle reached the correlation."""
        return f"{'≤ ' * (self.chance <= self.least)}{number(self.chance)}"


def recovery_by_recipe(audited: Audit) -> list[tuple[RecipeAudit, list[Recovered]]]:
    """The shares of all rules by recipe.  Runs that differ only in what is measured count once."""
    kept = _distinct(audited)
    return [
        (recipe, [one for one, rule in pairs if (recipe.title, rule.label) in kept])
        for recipe in audited.recipes
        for pairs in [sorted(_pairs(recipe), key=lambda pair: _rank(pair[0]))]
    ]


def _distinct(audited: Audit) -> set[tuple[str, str]]:
    """Recipe and rule of every distinct training.

    One that belongs to two recipes counts in the one with more seeds, or more rules: a part of its seeds is no other
    training.
    """
    every = [(recipe, rule) for recipe in audited.recipes for rule in recipe.rules]
    kept: dict[str, list[set[int]]] = {}
    found = set()
    for recipe, rule in sorted(every, key=lambda pair: (-len(pair[1].seeds), -len(pair[0].rules))):
        trained = {key: value for key, value in recipe.recipe.items() if not key.startswith(_OBSERVATION_KEYS)}
        others, seeds = kept.setdefault(identity(trained | rule.options), []), set(rule.seeds)
        if not any(seeds <= other for other in others):
            others.append(seeds)
            found.add((recipe.title, rule.label))
    return found


class _Point(NamedTuple):
    """A rule in a recipe: its share, and the means of two quantities over its runs."""

    recipe: str
    rule: str
    runs: int
    value: float
    share: float
    stream: float


def rank_correlations(audited: Audit) -> list[RankCorrelation]:
    """The rank correlation of each quantity over the rules of each recipe, the strongest first.

    A rule is one point, its mean over seeds: its runs are not independent, and shuffling them one by one would
    underestimate the chance.  Runs that differ only in their probes are one training.  Ranks are taken, and rules
    shuffled, within a recipe: a recipe in which every rule has a larger share adds nothing.
    """
    kept = _distinct(audited)
    pairs = [
        (recipe.title, *pair)
        for recipe in audited.recipes
        for pair in _pairs(recipe)
        if pair[0].share.n and (recipe.title, pair[1].label) in kept
    ]
    found = [_rank_correlation_of(name, of, pairs) for name, of in RECOVERY_QUANTITIES.items()]
    return sorted(found, key=lambda one: (one.reason is not None, -abs(one.correlation)))


def _mean(metric: str) -> Callable[[RunAudit], float]:
    return lambda one: one.run.mean(metric, one.run.epochs, one.run.deep).value


def _above_chance(one: RunAudit) -> float:
    """The share of layers at which cosine and ρ are above chance; NaN where D3 is undefined at a layer."""
    layers = one.credits
    if not layers or any(layer.side is None for layer in layers):
        return math.nan
    return sum(layer.side in ("above", "given") for layer in layers) / len(layers)


RECOVERY_QUANTITIES: dict[str, Callable[[RunAudit], float]] = {
    "D1, largest growth over a block": lambda one: one.answers["D1"].value,
    STREAM_LABEL: lambda one: since_init(one.run, one.run.epochs, "hidden_norm").value,
    "‖g_L‖·‖h_L‖/‖e‖ ÷ init": lambda one: scale_free(one.run, one.run.epochs).value,
    "D2, cos(g, g in float64)": lambda one: one.answers["D2"].value,
    "D3, share of layers above chance": _above_chance,
    **{symbol_of(metric): _mean(metric) for metric in CONTROLLED},
    symbol_of(NUDGE_METRIC).replace(",", " of BP's gradient,"): _mean(f"{NUDGE_METRIC}/bp"),
}
"""Quantities of a run at its last epoch; those of the credit are means over layers 1 … L−1."""


def _rank_correlation_of(
    name: str, of: Callable[[RunAudit], float], pairs: Sequence[tuple[str, Recovered, RuleAudit]]
) -> RankCorrelation:
    """Undefined, with the reason, for fewer than `FEWEST_RULES` points with a rank, and where a side is constant."""
    points = []
    for recipe, one, rule in pairs:
        over, stream = (summarise(map(each, rule.runs)) for each in (of, RECOVERY_QUANTITIES[STREAM_LABEL]))
        if over.n:
            points.append(_Point(recipe, rule.label, over.n, over.mean, one.share.mean, stream.mean))
    strata = _strata(points)
    within = [point for stratum in strata for point in stratum]
    n, reason = len(within), None
    if n < FEWEST_RULES:
        n, within = (n, within) if n else (len(points), points)
        reason = f"{n} rule{'' if n == 1 else 's'} with both: {FEWEST_RULES} are needed"
    elif not all(_vary([_ranks(stratum, side) for stratum in strata]) for side in ("value", "share")):
        reason = "all rules have the same value"
    correlation, chance = (math.nan, math.nan) if reason else _correlation_and_chance(strata)
    partial = math.nan if reason or name == STREAM_LABEL else _partial(points)
    return RankCorrelation(
        quantity=name,
        correlation=correlation,
        chance=chance,
        least=0.0 if _orders(strata) <= SHUFFLES else 2 / (SHUFFLES + 1),
        given_stream=partial,
        n=n,
        rules=len({point.rule for point in within}),
        recipes=len(strata),
        runs=sum(point.runs for point in within),
        reason=reason,
    )


def _strata(points: Sequence[_Point]) -> list[list[_Point]]:
    """The points by recipe; one that is alone in its recipe has no rank."""
    by_recipe: dict[str, list[_Point]] = {}
    for point in points:
        by_recipe.setdefault(point.recipe, []).append(point)
    return [stratum for stratum in by_recipe.values() if len(stratum) > 1]


def _ranks(stratum: Sequence[_Point], side: str) -> "NDArray[np.float64]":
    """Ranks within a recipe, centred, ÷ (rules + 1): recipes with many and with few rules have one scale."""
    from scipy.stats import rankdata  # type: ignore[import-untyped]

    ranks = rankdata([getattr(point, side) for point in stratum])
    centred: NDArray[np.float64] = (ranks - ranks.mean()) / (len(stratum) + 1)
    return centred


def _vary(parts: "Sequence[NDArray[np.float64]]") -> bool:
    return any(bool((part != 0).any()) for part in parts)


def _orders(strata: Sequence[Sequence[_Point]]) -> int:
    return math.prod(math.factorial(len(stratum)) for stratum in strata)


def _correlation_and_chance(strata: Sequence[Sequence[_Point]]) -> tuple[float, float]:
    """Spearman's correlation within recipes, and how often rules that are shuffled within them correlate as strongly.

    With one recipe it is Spearman's.  Few orders are all tried.
    """
    import numpy as np

    parts = [(_ranks(stratum, "value"), _ranks(stratum, "share")) for stratum in strata]
    length = math.sqrt(math.prod(sum(float(side @ side) for side in sides) for sides in zip(*parts, strict=True)))
    found = sum(float(mine @ other) for mine, other in parts) / length
    every = _orders(strata) <= SHUFFLES
    drawn = np.zeros(1)
    rng = np.random.default_rng(0)
    for mine, other in parts:
        if every:
            orders = np.array(list(itertools.permutations(mine)))
            drawn = (drawn[:, None] + (orders @ other)[None, :]).ravel()
        else:
            drawn = drawn + rng.permuted(np.tile(mine, (SHUFFLES, 1)), axis=1) @ other
    drawn = drawn / length
    sides = (int((drawn >= found - 1e-9).sum()), int((drawn <= found + 1e-9).sum()))
    chance = 2 * (min(sides) + (not every)) / (len(drawn) + (not every))
    return found, min(1.0, chance)


def _partial(points: Sequence[_Point]) -> float:
    """The partial correlation of ranks within recipes, given those of the stream."""
    import numpy as np

    strata = _strata([point for point in points if math.isfinite(point.stream)])
    sides = [[_ranks(stratum, side) for stratum in strata] for side in ("value", "share", "stream")]
    if sum(map(len, strata)) < FEWEST_RULES or not all(map(_vary, sides)):
        return math.nan
    (_, xy, xz), (_, _, yz), _ = np.corrcoef([np.concatenate(side) for side in sides])
    rest = (1 - xz**2) * (1 - yz**2)
    return float((xy - xz * yz) / math.sqrt(rest)) if rest > 1e-12 else math.nan
