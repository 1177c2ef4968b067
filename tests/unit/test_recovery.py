"""The share of backprop's margin that a rule recovers, and which quantity goes with it, on runs made for it."""

import itertools
import math

import numpy as np
import polars as pl
import pytest
from scipy.stats import rankdata, spearmanr

from sonde.analysis.audit import audit
from sonde.analysis.evidence import Evidence
from sonde.analysis.recovery import (
    FEWEST_RULES,
    RECOVERY_QUANTITIES,
    SHUFFLES,
    Accuracy,
    RankCorrelation,
    Recovered,
    error_by_test_set,
    rank_correlations,
    recovered,
    share_of_margin,
)
from sonde.analysis.recovery import recovery_by_recipe as of_recipes
from sonde.analysis.runs import evidence_lines
from sonde.core.seed_statistics import ratio_interval, t_interval
from sonde.store.run import Runs
from sonde.studies.recipes import share_of_rule
from stores import DEPTH, EPOCHS, SAMPLES, Key, Value, config, healthy, run, store

SEEDS = (42, 123, 456)
RULES = {"bp": 0.9, "frozen": 0.5, "kp": 0.85, "fa": 0.8, "usf": 0.7, "dfa": 0.6, "credit_bridge": 0.45}
COSINES = {"bp": 1.0, "frozen": 0.5, "kp": 0.3, "fa": 0.4, "usf": 0.6, "dfa": 0.2, "credit_bridge": 0.1}
OTHERS = [rule for rule in RULES if rule not in ("bp", "frozen")]


def measured(rule: str, seed: int) -> dict[Key, Value]:
    return healthy(seed, accuracy=RULES[rule], cosine=COSINES[rule])


def runs(rules: tuple[str, ...] = tuple(RULES), seeds: tuple[int, ...] = SEEDS) -> Runs:
    return store(*(run(config(rule, seed), measured(rule, seed)) for rule in rules for seed in seeds))


def shares(stored: Runs) -> dict[str, Recovered]:
    (recipe,) = audit(stored).recipes
    return {one.rule: one for one in recovered(recipe)}


def of(quantity: str, stored: Runs) -> RankCorrelation:
    (one,) = [one for one in rank_correlations(audit(stored)) if one.quantity == quantity]
    return one


def test_the_share_is_that_of_each_seeds_own_margin() -> None:
    found = shares(runs())
    assert list(found) == OTHERS
    for rule, one in found.items():
        for seed, share in one.by_seed.items():
            own, best, least = (measured(name, seed)["test_acc", EPOCHS, None] for name in (rule, "bp", "frozen"))
            assert share == pytest.approx((own - best) / (best - least) + 1, rel=1e-9)
        assert one.share.n == 3
        assert one.share.mean == pytest.approx((RULES[rule] - 0.5) / 0.4, abs=1e-9)


def test_over_seeds_the_share_is_the_mean_gain_over_the_mean_margin() -> None:
    around = share_of_margin({1: 1.0, 2: 8.0, 3: 5.0, 4: 100.0}, {1: 2.0, 2: 10.0, 3: 30.0, 5: 7.0})
    assert len(around) == 3
    assert sum(around) / 3 == pytest.approx((1 + 8 + 5) / (2 + 10 + 30))
    assert share_of_margin({1: 1.0}, {1: -2.0}) == share_of_margin({1: 1.0}, {2: 2.0}) == []


def test_a_seed_at_which_backprop_loses_counts_in_the_mean_and_has_no_share_of_its_own() -> None:
    reached = {"bp": (0.62, 0.481), "frozen": (0.6, 0.5), "fa": (0.61, 0.49)}
    stored = store(
        *(
            run(config(rule, seed), healthy(seed, accuracy=value))
            for rule, values in reached.items()
            for seed, value in zip(SEEDS, values, strict=False)
        )
    )
    one = shares(stored)["fa"]
    exact = {name: [measured_at(stored, name, seed) for seed in SEEDS[:2]] for name in reached}
    gain, margin = (sum(exact[name]) - sum(exact["frozen"]) for name in ("fa", "bp"))
    assert one.by_seed.keys() == {SEEDS[0]}
    assert one.without == {SEEDS[1]: "backprop is not above frozen blocks"}
    assert one.share.n == 2
    assert one.share.mean == pytest.approx(gain / margin)


def measured_at(stored: Runs, rule: str, seed: int) -> float:
    (known,) = [one for one in stored.runs if one.config["rule"]["name"] == rule and one.config["seed"] == seed]
    (value,) = stored.rows.filter(run=known.id, metric="test_acc", epoch=EPOCHS)["value"]
    return float(value)


def test_runs_are_paired_with_the_share_of_their_own_rule_though_labels_coincide() -> None:
    stored = runs()
    for one in stored.runs:
        one.about["rule_label"] = "DFA"
    assert of("cosine", stored).correlation == of("cosine", runs()).correlation


def test_an_interval_needs_two_seeds() -> None:
    one = shares(runs(seeds=(42,)))["fa"]
    assert one.share.n == 1
    assert math.isnan(one.interval.low)
    assert "two seeds" in (one.interval.reason or "")


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (("fa", "frozen"), "there is no backprop of this recipe"),
        (("fa", "bp"), "there is no frozen baseline of this recipe"),
    ],
)
def test_without_a_yardstick_the_share_is_undefined_and_says_why(rules: tuple[str, ...], reason: str) -> None:
    one = shares(runs(rules))["fa"]
    assert one.share.n == 0
    assert math.isnan(one.share.mean)
    assert one.share.reason == reason


def test_backprop_that_is_not_above_frozen_blocks_has_no_margin_to_share() -> None:
    stored = store(
        *(
            run(config(rule, 42), healthy(42, accuracy=accuracy))
            for rule, accuracy in {"bp": 0.5, "frozen": 0.6, "fa": 0.7}.items()
        )
    )
    assert shares(stored)["fa"].share.reason == "backprop is not above frozen blocks"


def test_the_rank_correlation_is_that_of_scipy_over_all_rules_but_the_yardsticks() -> None:
    stored = runs()
    found = shares(stored)
    cosines = [sum(measured(rule, seed)["credit_cosine", EPOCHS, 1] for seed in SEEDS) / len(SEEDS) for rule in OTHERS]
    one = of("cosine", stored)
    assert (one.n, one.runs) == (len(OTHERS), len(OTHERS) * len(SEEDS))
    assert one.correlation == pytest.approx(
        spearmanr(cosines, [found[rule].share.mean for rule in OTHERS]).statistic, abs=1e-12
    )
    assert one.chance == pytest.approx(_every_order(cosines, [found[rule].share.mean for rule in OTHERS]))


def _every_order(ours: list[float], theirs: list[float]) -> float:
    """How many of all orders correlate as strongly, in the direction that is found, twice: either one counts."""
    own = spearmanr(ours, theirs).statistic
    drawn = [spearmanr(order, theirs).statistic for order in itertools.permutations(ours)]
    return 2 * min(sum(one >= own - 1e-9 for one in drawn), sum(one <= own + 1e-9 for one in drawn)) / len(drawn)


def test_more_seeds_of_the_same_rules_make_chance_no_rarer() -> None:
    assert of("cosine", runs()).chance == of("cosine", runs(seeds=(42,))).chance


def test_a_quantity_that_never_differs_or_has_few_rules_has_no_correlation() -> None:
    same = of("D1, largest growth over a block", runs())
    assert (math.isnan(same.correlation), same.reason) == (True, "all rules have the same value")
    few = of("cosine", runs(("bp", "frozen", "fa")))
    assert (few.n, few.runs, few.reason) == (1, 3, f"1 rule with both: {FEWEST_RULES} are needed")


def test_the_spread_of_backprops_margin_counts_in_the_interval() -> None:
    """The gain is the same at every seed and the margin is not: the interval is that of 5 ÷ the margin's interval."""
    margin = {1: 8.0, 2: 10.0, 3: 12.0}
    found, around = ratio_interval(dict.fromkeys(margin, 5.0), margin), t_interval(margin.values())
    assert (found.low, found.high) == pytest.approx((5 / around.high, 5 / around.low))
    assert share_of_margin(dict.fromkeys(margin, 5.0), margin) == pytest.approx([0.6, 0.5, 0.4])


@pytest.mark.parametrize("seeds", [3, 8])
@pytest.mark.parametrize("share", [-0.25, 0.3, 0.95])
def test_fiellers_interval_holds_the_true_share_as_often_as_it_says(seeds: int, share: float) -> None:
    """Gain and margin of 2,000 imagined studies, correlated as both subtract one frozen run; 95 ± 2 % is 4 errors."""
    rng = np.random.default_rng(seeds)
    held = []
    for _ in range(2000):
        frozen, noise = rng.normal(0, 1.0, seeds), rng.normal(0, 1.0, (2, seeds))
        gain, margin = share * 16 + noise[0] - frozen, 16 + noise[1] - frozen
        found = ratio_interval(dict(enumerate(gain)), dict(enumerate(margin)))
        assert found.reason is None
        held.append(found.low <= share <= found.high)
    assert np.mean(held) == pytest.approx(0.95, abs=0.02)


def test_fiellers_interval_is_what_a_paired_t_test_does_not_reject() -> None:
    gain, margin = {1: 4.0, 2: 5.5, 3: 7.0, 9: 1.0}, {1: 9.0, 2: 10.0, 3: 12.0}
    found = ratio_interval(gain, margin)
    for ratio, limit in ((found.low, 1.0), (found.high, -1.0)):
        rest = t_interval([gain[seed] - ratio * margin[seed] for seed in margin])
        assert min(abs(rest.low), abs(rest.high)) == pytest.approx(0, abs=1e-9), limit


def test_a_margin_that_may_be_0_has_no_finite_interval() -> None:
    found = ratio_interval({1: 1.0, 2: 2.0}, {1: 0.5, 2: 10.0})
    assert math.isnan(found.low)
    assert "not told from 0" in (found.reason or "")


def test_rules_are_ranked_within_their_recipe() -> None:
    """In each recipe the share falls as the cosine rises; over both it rises, for the second has more of both."""
    names = [f"rule{n}" for n in range(5)]
    made = []
    for rate, more in ((1e-3, 0.0), (1e-2, 0.15)):
        reached = {"bp": 0.95, "frozen": 0.4} | {rule: 0.6 + more - 0.02 * n for n, rule in enumerate(names)}
        cosines = {rule: 0.2 + 2 * more + 0.02 * n for n, rule in enumerate(names)}
        for rule, value in reached.items():
            measured = healthy(42, accuracy=value, cosine=cosines.get(rule, 1.0))
            made.append(run(config(rule, 42, optimiser__lr=rate), measured))
    one = of("cosine", store(*made))
    assert (one.n, one.rules, one.recipes) == (10, 5, 2)
    assert one.correlation == pytest.approx(-1)
    assert one.chance <= 1e-3


def test_issue_27_item_6_a_share_of_one_seed_has_the_binomial_error_of_its_test_set() -> None:
    """KP at 54.2 % between frozen at 38.2 % and BP at 54.6 %, of 10,000 test samples each: 97 ± 4 %."""
    one = [Accuracy(value=value, samples=10_000) for value in (0.5415, 0.5463, 0.3818)]
    rng = np.random.default_rng(0)
    rule, bp, frozen = (rng.binomial(10_000, side.value, 20_000) for side in one)
    drawn = (rule - frozen) / (bp - frozen)
    assert error_by_test_set(*one) == pytest.approx(float(drawn.std()), rel=0.05)
    assert error_by_test_set(*one) == pytest.approx(0.042, abs=0.001)
    single, several = shares(runs(seeds=(42,)))["fa"], shares(runs())["fa"]
    reached = (measured(rule, 42)["test_acc", EPOCHS, None] for rule in ("fa", "bp", "frozen"))
    expected = error_by_test_set(*(Accuracy(value=value, samples=SAMPLES) for value in reached))
    assert single.test_error == pytest.approx(expected)
    assert math.isnan(several.test_error)


def test_issue_27_item_6_runs_that_differ_in_their_probes_alone_count_once() -> None:
    seeds = (42,)
    others = ("bp", "frozen", "dfa")
    looked_at_again = [run(config(rule, 42, probes__size=7), measured(rule, 42)) for rule in others]
    again = Runs(
        pl.concat([runs(seeds=seeds).rows, *(rows for _, rows in looked_at_again)]),
        [*runs(seeds=seeds).runs, *(one for one, _ in looked_at_again)],
    )
    assert of("cosine", again).n == of("cosine", runs(seeds=seeds)).n == len(OTHERS)
    told = [one.rule for _, rules in of_recipes(audit(again)) for one in rules]
    assert sorted(told) == sorted(OTHERS)


def test_a_part_of_the_seeds_of_a_training_is_no_other_training_and_other_seeds_are() -> None:
    for seed, n in ((SEEDS[0], len(OTHERS)), (7, 2 * len(OTHERS))):
        of_one = [run(config(rule, seed, probes__size=7), measured(rule, seed)) for rule in RULES]
        of_three = [run(config(rule, each), measured(rule, each)) for rule in RULES for each in SEEDS]
        stored = store(*of_three, *of_one)
        assert of("cosine", stored).n == sum(len(shares) for _, shares in of_recipes(audit(stored))) == n


def test_issue_27_item_6_a_chance_that_no_shuffle_reached_is_an_upper_limit() -> None:
    names = [f"rule{n}" for n in range(12)]
    reached = {rule: 0.55 + 0.02 * n for n, rule in enumerate(names)} | {"bp": 0.9, "frozen": 0.5}
    stored = store(
        *(run(config(rule, 42), healthy(42, accuracy=value, cosine=value / 2)) for rule, value in reached.items())
    )
    one = of("cosine", stored)
    assert one.correlation == pytest.approx(1)
    assert one.chance == one.least == 2 / (SHUFFLES + 1)
    assert one.said_chance == "≤ 2.0e-4"
    few = of("cosine", runs())
    assert few.least == 0
    assert "≤" not in few.said_chance


def test_issue_27_item_6_no_correlation_is_made_of_differences_of_1e_8() -> None:
    """ρ of BP's own gradient is 1 everywhere but for rounding."""
    assert not any("ρ of BP" in quantity for quantity in RECOVERY_QUANTITIES)


def test_the_correlation_given_the_stream_is_the_partial_rank_correlation() -> None:
    tops = dict(zip(OTHERS, (9.0, 40.0, 12.0, 300.0, 50.0), strict=True))

    def grown(rule: str) -> dict[Key, Value]:
        values = measured(rule, 42)
        return values | {("hidden_norm", EPOCHS, DEPTH): 12.0 * tops.get(rule, 1.0)}

    stored = store(*(run(config(rule, 42), grown(rule)) for rule in RULES))
    share, cosine, top = (
        rankdata(side)
        for side in (
            [RULES[rule] for rule in OTHERS],
            [COSINES[rule] for rule in OTHERS],
            [tops[rule] for rule in OTHERS],
        )
    )
    left = [side - np.polyval(np.polyfit(top, side, 1), top) for side in (share, cosine)]
    assert of("cosine", stored).given_stream == pytest.approx(np.corrcoef(left)[0, 1])


def test_a_study_has_the_interval_of_recovery_and_decides_where_every_seed_equals_backprop() -> None:
    reached = {"bp": (0.9, 0.92, 0.89), "frozen": (0.5, 0.5, 0.5), "fa": (0.8, 0.86, 0.78), "kp": (0.9, 0.92, 0.89)}
    pairs = [(rule, seed, value) for rule, values in reached.items() for seed, value in zip(SEEDS, values, strict=True)]
    stored = store(
        *(
            run(config(rule, seed), measured(rule, seed) | {("test_acc", EPOCHS, None): value})
            for rule, seed, value in pairs
        )
    )
    evidence = Evidence(stored.rows, evidence_lines(stored.runs), "runs")
    for rule in ("fa", "kp"):
        found = share_of_rule(evidence.runs, evidence.runs.filter(rule=rule), evidence.readings())
        wanted = shares(stored)[rule].interval
        assert (found.interval.low, found.interval.high) == pytest.approx((wanted.low, wanted.high), rel=1e-6)
    assert found.decided, "its share is 1 at every seed"
