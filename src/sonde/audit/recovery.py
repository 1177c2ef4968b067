"""What of backprop's margin over frozen blocks a rule recovers, and which of the audit's quantities goes with it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sonde.audit.audit import CONTROLLED, NUDGE, Audit, RecipeAudit, RuleAudit, RunAudit
from sonde.metrics import symbol_of
from sonde.spreads import Interval, Summary, summarise, t_interval

FEW = 5  # rules: fewer have no rank correlation worth a number
SHUFFLES = 9999
CONFIDENCE = 0.95
YARDSTICKS = ("bp", "frozen")
"""Of the share, 1 and 0."""


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """A rule's share of backprop's margin over frozen blocks: (rule − frozen) ÷ (bp − frozen), means over seeds."""

    rule: str
    label: str
    by_seed: dict[int, float]  # where backprop is above frozen blocks
    without: dict[int, str]  # seeds that have no share of their own, and why
    share: Summary
    interval: Interval


def recovered(recipe: RecipeAudit, confidence: float = CONFIDENCE) -> list[Recovered]:
    """Every rule of a recipe but the two yardsticks, the largest share first; those without one last."""
    found = [one for one, _ in _pairs(recipe, confidence)]
    return sorted(found, key=lambda one: (one.share.n == 0, -one.share.mean if one.share.n else 0.0))


def _pairs(recipe: RecipeAudit, confidence: float) -> list[tuple[Recovered, RuleAudit]]:
    best = [rule for rule in recipe.rules if rule.rule == "bp"]
    return [
        (_recovered(rule, best, confidence), rule)
        for rule in recipe.rules
        if rule.rule not in YARDSTICKS and rule.runs
    ]


def _recovered(rule: RuleAudit, best: Sequence[RuleAudit], confidence: float) -> Recovered:
    margin = best[0].margin.by_seed if len(best) == 1 else {}
    why = (
        "there is no backprop of this recipe"
        if not best
        else f"there are {len(best)} backprops of this recipe"
        if len(best) > 1
        else None
    )
    shares, without = {}, dict(rule.margin.without)
    for seed, points in rule.margin.by_seed.items():
        if seed not in margin:
            without[seed] = why or "backprop has no margin at this seed"
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
        interval=t_interval(around, confidence),
    )


def share_of_margin(gained: Mapping[int, float], margin: Mapping[int, float]) -> list[float]:
    """A value for each seed that has both; their mean is the mean gain over the mean margin, their spread its error.

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
class Foretells:
    """The rank correlation of a quantity with the share that a rule recovers, over rules."""

    quantity: str
    correlation: float  # Spearman's; NaN where undefined, and `reason` says why
    chance: float  # how often shuffled rules correlate as strongly, in either direction
    n: int  # rules that have both; one of two recipes counts twice
    runs: int  # that they are means over
    reason: str | None = None


def foretelling(audited: Audit) -> list[Foretells]:
    """Each quantity over all rules of all recipes, the strongest first.

    A rule is one point, its mean over seeds: runs of one rule resemble each other, and shuffled one by one they would
    make chance look rarer than it is.
    """
    pairs = [pair for recipe in audited.recipes for pair in _pairs(recipe, CONFIDENCE) if pair[0].share.n]
    found = [_foretells(name, of, pairs) for name, of in QUANTITIES.items()]
    return sorted(found, key=lambda one: (one.reason is not None, -abs(one.correlation)))


def _mean(metric: str) -> Callable[[RunAudit], float]:
    return lambda one: one.run.mean(metric, one.run.epochs, one.run.deep).value


def _above_chance(one: RunAudit) -> float:
    """The share of layers at which cosine and ρ both are; NaN where D3 was not asked or left a layer open."""
    layers = one.credits
    if not layers or any(layer.standing is None for layer in layers):
        return math.nan
    return sum(layer.standing in ("above", "given") for layer in layers) / len(layers)


QUANTITIES: dict[str, Callable[[RunAudit], float]] = {
    "D1, largest growth over a block": lambda one: one.answers["D1"].value,
    "D2, ‖g_L‖/‖e‖ ÷ init": lambda one: one.answers["D2"].value,
    "D3, share of layers above chance": _above_chance,
    **{symbol_of(metric): _mean(metric) for metric in CONTROLLED},
    f"{symbol_of('rho')} of BP's gradient": _mean("rho/bp"),
    symbol_of(NUDGE).replace(",", " of BP's gradient,"): _mean(f"{NUDGE}/bp"),
}
"""Of a run at its end; those of the credit are means over layers 1 … L−1."""


def _foretells(
    name: str, of: Callable[[RunAudit], float], pairs: Sequence[tuple[Recovered, RuleAudit]]
) -> Foretells:
    over_runs = [(summarise(map(of, rule.runs)), one.share.mean) for one, rule in pairs]
    known = [(over.mean, share) for over, share in over_runs if over.n]
    n, runs = len(known), sum(over.n for over, _ in over_runs)
    reason = None
    if n < FEW:
        reason = f"{n} rule{'' if n == 1 else 's'} with both: {FEW} are needed"
    elif any(len(set(side)) == 1 for side in zip(*known, strict=True)):
        reason = "all rules have the same value"
    correlation, chance = (math.nan, math.nan) if reason else _rank_correlation(*zip(*known, strict=True))
    return Foretells(quantity=name, correlation=correlation, chance=chance, n=n, runs=runs, reason=reason)


def _rank_correlation(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Spearman's, and how often shuffled pairs correlate as strongly."""
    import numpy as np
    from scipy.stats import permutation_test, rankdata  # type: ignore[import-untyped]

    mine, other = (rankdata(side) - (len(side) + 1) / 2 for side in (ours, theirs))
    length = float(np.sqrt((mine @ mine) * (other @ other)))
    test = permutation_test(
        (mine,),
        lambda shuffled, axis: (shuffled * other).sum(axis) / length,
        permutation_type="pairings",
        vectorized=True,
        n_resamples=SHUFFLES,
        rng=0,
    )
    return float(test.statistic), float(test.pvalue)
