"""The numbers and words behind the figures: estimator, theory, verdicts."""

import math

import polars as pl
import pytest

from sonde.analysis.theory import INPUT_STD, independent_factor, preactivation_stds, second_moments
from sonde.core.formatting import (
    gradient_verdict,
    loss_status,
    loss_verdict,
    number,
    percent,
    reduction,
    signal_verdict,
)
from sonde.core.seed_statistics import over_seeds

SCALED = 1 / math.sqrt(20)


def test_the_residual_stream_grows_faster_than_one_plus_alpha_squared() -> None:
    assert second_moments(True, 1.0, 20)[-1] == pytest.approx(3.1e8, rel=0.01)
    assert second_moments(True, SCALED, 20)[-1] == pytest.approx(16.1, rel=0.01)
    assert len(second_moments(True, 1.0, 20)) == 21


def test_plain_raw_weights_keep_the_second_moment() -> None:
    assert second_moments(False, 1.0, 20) == pytest.approx([1 / 3] * 21)
    assert second_moments(False, SCALED, 20)[-1] == pytest.approx(20.0**-20 / 3)


def test_linear_outputs_spread_by_alpha_root_two_q() -> None:
    stds = preactivation_stds(False, SCALED, 20)
    assert len(stds) == 20
    assert stds[0] == pytest.approx(SCALED * math.sqrt(2 / 3))
    assert stds[1] / stds[0] == pytest.approx(SCALED)


def test_the_gradient_norm_changes_by_alpha_or_root_one_plus_alpha_squared() -> None:
    assert independent_factor(False, 0.5) == 0.5
    assert independent_factor(True, 1.0) == pytest.approx(math.sqrt(2))


def test_the_estimator_is_the_sample_standard_deviation_over_defined_seeds() -> None:
    rows = pl.DataFrame({"layer": [1, 1, 1, 2, 2, 3], "value": [1.0, 2.0, 6.0, 5.0, math.nan, math.nan]}).with_columns(
        defined=pl.col("value").is_not_nan()
    )
    summary = over_seeds(rows, "layer").rows(named=True)
    assert summary[0] == {"layer": 1, "mean": 3.0, "std": pytest.approx(math.sqrt(7)), "n": 3, "least": 1.0}
    assert summary[1] == {"layer": 2, "mean": 5.0, "std": None, "n": 1, "least": 5.0}
    assert summary[2] == {"layer": 3, "mean": None, "std": None, "n": 0, "least": None}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5774, "0.58"),
        (3.14e-14, "3.1e-14"),
        (2.7e8, "2.7e8"),
        (99.7, "100"),
        (1234.5, "1234"),
        (0.9999, "1"),
        (0, "0"),
        (-0.25, "−0.25"),
        (math.nan, "undefined"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_per_cent_never_rounds_up_to_all() -> None:
    assert percent(99.9948) == "99.995 %"
    assert percent(0.3) == "0.3 %"
    assert percent(100) == "100.0 %"


@pytest.mark.parametrize(
    ("initial", "final", "status"),
    [
        (14, 0.06, "learned"),
        (0.33, 0.329, "failed to learn"),
        (0.33, 0.5, "failed to learn"),
        (1e8, 9e3, "failed to learn"),
        (1.3, 0.315, "learned little"),
        (math.nan, 1, "undefined"),
    ],
)
def test_whether_it_learned_is_judged_against_predicting_zero(initial: float, final: float, status: str) -> None:
    assert loss_status(reduction(initial, final), final, 1 / 3) == status


def test_the_words_on_a_loss_carry_its_number() -> None:
    assert loss_verdict(99.57, 0.06, 1 / 3) == "learned: loss fell 99.6 %"
    assert loss_verdict(0.3, 0.33, 1 / 3) == "failed to learn: loss fell 0.3 %"
    assert loss_verdict(-50, 0.5, 1 / 3) == "failed to learn: loss rose 50.0 %"
    assert "×3.0e4 that of predicting zero" in loss_verdict(99.99, 1e4, 1 / 3)


def test_the_words_on_a_signal_follow_the_data() -> None:
    assert signal_verdict([0.2, 0.01, 3.1e-14], INPUT_STD) == "signal collapses: 3.1e-14 at layer 3"
    assert signal_verdict([0.2, 1e-5, 0.01], INPUT_STD).endswith("1.0e-5 at layer 2, 0.01 at layer 3")
    assert signal_verdict([0.2, 0.05], INPUT_STD) == "signal fades: 0.05 at layer 2"
    assert signal_verdict([0.2, 0.3], INPUT_STD).startswith("signal holds: 0.3 at layer 2")
    assert signal_verdict([2, 2000], INPUT_STD).startswith("signal explodes: 2000 at layer 2")
    assert signal_verdict([2, 9], INPUT_STD).startswith("signal grows: 9 at layer 2, ×16 the input")
    assert signal_verdict([math.nan], INPUT_STD) == "signal undefined"


def test_the_words_on_a_gradient_follow_the_data() -> None:
    assert gradient_verdict(4e-14) == "gradient vanishes: ×4.0e-14 from last layer to first"
    assert gradient_verdict(1.9).startswith("gradient arrives")
    assert gradient_verdict(678).startswith("gradient explodes")
    assert gradient_verdict(math.nan) == "gradient undefined"
