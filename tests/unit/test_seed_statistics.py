"""The one place where spreads are computed."""

import ast
import math
import statistics
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from sonde.core.seed_statistics import (
    Summary,
    holm,
    over_seeds,
    paired,
    seeds_to_decide,
    summarise,
    t_chance,
    t_interval,
    t_power,
    t_quantile,
)

SOURCE = Path(__file__).parents[2] / "src" / "sonde"
SPREADS = {
    "std", "var", "stdev", "pstdev", "variance", "pvariance", "nanstd", "nanvar", "std_mean", "var_mean", "sem",
}  # fmt: skip
MEASUREMENTS = {
    "analysis/diagnosis/constant_answer.py",  # the variance of targets, which is what one constant answer leaves
    "metrics/probes/signal.py",  # the spread of a layer's units, which is what is measured
    "tasks/task.py",  # standardises inputs
    "tasks/images.py",  # standardises pixels
    "observe/experiments/__init__.py",  # standardises targets
    "observe/experiments/copies.py",  # standardises inputs, and notes the spread of targets
    "observe/experiments/pairs.py",  # whether a feature differs inside a class
    "observe/facts.py",  # the spread of an input's numbers, which is what is noted
    "observe/predict/contractions.py",  # how unequal the rows or columns of a matrix are
    "observe/predict/operations.py",  # imports what `torch.var` within a network does to a predicted signal
}


def spreads_in(code: str) -> set[str]:
    """Calls of a spread, as a function or a method, and imports of one."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", None))
            found |= {name} & SPREADS
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names} & SPREADS
    return found


def test_no_other_module_computes_a_spread() -> None:
    for file in SOURCE.rglob("*.py"):
        name = file.relative_to(SOURCE).as_posix()
        if name != "core/seed_statistics.py" and name not in MEASUREMENTS:
            assert not spreads_in(file.read_text()), f"{name}: use sonde.core.seed_statistics"


@pytest.mark.parametrize(
    "code", ["x.std()", "np.std(x)", "pl.std('value')", "pl.col('a').var()", "from statistics import stdev"]
)
def test_a_spread_elsewhere_would_be_noticed(code: str) -> None:
    assert spreads_in(code)


def test_population_standard_deviation_for_three_seeds_is_impossible() -> None:
    assert summarise([1.0, 2.0, 6.0]).std == pytest.approx(math.sqrt(7))  # not √(14/3)
    rows = pl.DataFrame({"rule": ["bp"] * 3, "value": [1.0, 2.0, 6.0], "defined": [True] * 3})
    assert over_seeds(rows, "rule")["std"].item() == pytest.approx(math.sqrt(7))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=12))
def test_mean_and_spread_are_those_of_exact_fractions(values: list[float]) -> None:
    found = summarise(values)
    for ours, exact in ((found.mean, statistics.mean), (found.std, statistics.stdev)):
        try:
            theirs = float(exact(values))
        except OverflowError:
            theirs = math.inf
        assert ours == theirs if math.isfinite(theirs) else math.isnan(ours)


@pytest.mark.parametrize("value", [0.7, 1e-300, 5e-324, 1e300])
def test_equal_values_have_their_mean_and_no_spread(value: float) -> None:
    assert summarise([value] * 3).mean == value
    assert summarise([value] * 3).std == 0


def test_undefined_values_do_not_count_and_n_says_so() -> None:
    known = summarise([1.0, math.nan, 3.0, math.inf])
    assert (known.mean, known.n) == (2.0, 2)
    one = summarise([5.0])
    assert (one.mean, one.n) == (5.0, 1)
    assert math.isnan(one.std)
    none = summarise([math.nan], "the gradient is zero")
    assert math.isnan(none.mean)
    assert (none.n, none.reason) == (0, "the gradient is zero")


def test_the_interval_of_three_seeds_equals_one_computed_by_hand() -> None:
    # differences −2, −3, −4: mean −3, s = 1; with two degrees of freedom t = (2p − 1)·√(2/(4p(1 − p))) = 4.3027
    half = 0.95 * math.sqrt(2 / (4 * 0.975 * 0.025)) / math.sqrt(3)
    known = t_interval([-2.0, -3.0, -4.0])
    assert known.low == pytest.approx(-3 - half, rel=1e-12)
    assert known.high == pytest.approx(-3 + half, rel=1e-12)
    assert known.confidence == 0.95


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9))
def test_the_interval_equals_scipys(values: list[float]) -> None:
    known = t_interval(values)
    n = len(values)
    centre, error = statistics.mean(values), statistics.stdev(values) / math.sqrt(n)
    if not error:
        assert math.isnan(known.low)
        assert "are the same, so their spread is unknown" in (known.reason or "")
        return
    low, high = scipy.stats.t.interval(0.95, n - 1, loc=centre, scale=error)
    assert known.low == pytest.approx(low, rel=1e-9, abs=1e-9)
    assert known.high == pytest.approx(high, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("freedom", [1, 2, 3, 10, 200])
@pytest.mark.parametrize("probability", [0.5, 0.9, 0.975, 0.995])
def test_quantiles_equal_scipys(freedom: int, probability: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(scipy.stats.t.ppf(probability, freedom), abs=1e-12)


def test_an_interval_of_one_seed_is_undefined_with_a_reason() -> None:
    known = t_interval([1.0])
    assert math.isnan(known.low)
    assert math.isnan(known.high)
    assert known.reason == "an interval needs two seeds or more: one value has no spread"
    assert "there is no value" in (t_interval([]).reason or "")


def test_pairs_are_made_by_seed_and_name_who_has_no_partner() -> None:
    known = paired({1: 0.5, 2: 0.7, 3: math.nan, 5: 1.0}, {2: 0.4, 1: 0.1, 3: 0.2, 4: 0.3})
    assert known.differences == {1: pytest.approx(0.4), 2: pytest.approx(0.3)}
    assert known.without == {
        3: "a value is undefined",
        4: "the baseline alone has it",
        5: "it has no partner in the baseline",
    }


def test_numbers_too_large_to_average_are_undefined_not_an_exception() -> None:
    known = summarise([1.7e308, -1.7e308])
    assert math.isnan(known.std)
    assert t_interval([1.7e308, -1.7e308]).reason == "overflow"


@given(st.floats(0.01, 100), st.floats(0.01, 10))
def test_so_many_seeds_decide_in_four_of_five_studies_and_one_fewer_do_not(mean: float, std: float) -> None:
    n = seeds_to_decide(Summary(mean=-mean, std=std, n=3))
    if n is None:
        assert std / mean > 300
        return

    def power(n: int) -> float:
        limit = float(scipy.stats.t.ppf(0.975, n - 1))
        return float(scipy.stats.nct.sf(limit, n - 1, mean / std * math.sqrt(n)))

    assert power(n) >= 0.8 - 1e-6
    assert n == 2 or power(n - 1) < 0.8 + 1e-6


def test_issue_27_item_6_seven_seeds_that_would_just_decide_have_a_power_of_58_per_cent() -> None:
    """DFA's −3.36 ± 3.43 points: at n = 7 an interval around this very mean excludes 0, in 58 % of studies."""
    effect = 3.36 / 3.43
    assert t_quantile(0.975, 6) / math.sqrt(7) < effect < t_quantile(0.975, 5) / math.sqrt(6)
    drawn = np.random.default_rng(0).normal(effect, 1, (20_000, 7))
    limit = t_quantile(0.975, 6) * drawn.std(1, ddof=1) / math.sqrt(7)
    decided = float((drawn.mean(1) > limit).mean())
    assert decided == pytest.approx(0.58, abs=0.015)
    assert t_power(effect, 7) == pytest.approx(decided, abs=0.015)
    assert seeds_to_decide(Summary(mean=-3.36, std=3.43, n=3)) == 11


def test_holms_correction_is_that_of_the_definition() -> None:
    assert holm({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx({"b": 0.03, "c": 0.06, "a": 0.06})
    assert holm({"a": 0.5, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_the_chance_of_a_mean_is_that_of_scipys_t_test() -> None:
    values = [1.0, 2.5, -0.5, 3.0]
    assert t_chance(values) == pytest.approx(scipy.stats.ttest_1samp(values, 0).pvalue, rel=1e-9)
    assert math.isnan(t_chance([1.0]))
    assert math.isnan(t_chance([2.0, 2.0]))


def test_no_number_of_seeds_decides_without_a_difference_or_a_spread() -> None:
    for mean, std in ((0.0, 1.0), (1.0, 0.0), (1.0, math.nan), (math.nan, 1.0)):
        assert seeds_to_decide(Summary(mean=mean, std=std, n=2)) is None


def test_equal_differences_of_counts_are_equal_whatever_their_last_bits() -> None:
    ours, base = {1: 343 / 360, 2: 336 / 360}, {1: 348 / 360, 2: 341 / 360}
    assert ours[1] - base[1] != ours[2] - base[2]
    found = paired(ours, base).differences
    assert found[1] == found[2] == pytest.approx(-5 / 360, abs=1e-12)
    assert t_interval(found.values()).reason == "all 2 values are the same, so their spread is unknown"
    assert paired({1: 0.0}, {1: 0.0}).differences == {1: 0.0}
    assert paired({1: 3e-9}, {1: 1e-9}).differences[1] == pytest.approx(2e-9, rel=1e-9)
    assert paired({1: 3e9}, {1: 1e9 + 1}).differences[1] == pytest.approx(2e9 - 1, rel=1e-15)
