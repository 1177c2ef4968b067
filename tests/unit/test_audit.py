"""The four questions: each fires and does not, names its epoch, or says what is missing."""

import math
import random
import statistics
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import tiny_config
from sonde.analysis.audit import AUDIT_METRICS, Audit, RuleAudit, audit, read_for_audit
from sonde.analysis.audit_text import audit_columns, audit_footnotes, audit_rows, sentence, verdict
from sonde.analysis.comparison import compare
from sonde.analysis.questions import AuditAnswer, critical_t
from sonde.cli.compare import audit_as_json as as_json
from sonde.config import Probing
from sonde.core.errors import SondeError
from sonde.core.formatting import Thresholds
from sonde.core.seed_statistics import t_power
from sonde.models import ResidualMLP
from sonde.rules import DirectFeedback, Frozen
from sonde.store.load import load
from sonde.store.run import Runs
from sonde.tasks import Digits
from sonde.training.train import train
from stores import (
    DEPTH,
    DRAWS,
    EPOCHS,
    Key,
    Value,
    changed,
    config,
    healthy,
    run,
    store,
    unpack,
    without,
)

SEEDS = (42, 123, 456)
Make = Callable[[int], dict[Key, Value]]


def frozen(seed: int) -> dict[Key, Value]:
    zero = "every credit or gradient is zero"
    return changed(
        healthy(seed, accuracy=0.35 + 1e-3 * math.cos(seed)),
        lambda metric, epoch, layer: zero if metric in ("credit_cosine", "rho", "nudge[0.01]") and layer else None,
    )


def of(rule: str, make: Make = healthy, seeds: tuple[int, ...] = SEEDS, **changes: object) -> list:
    return [run(config(rule, seed, **changes), make(seed)) for seed in seeds]


def with_frozen(rule: str, make: Make = healthy, seeds: tuple[int, ...] = SEEDS) -> Runs:
    return store(*of(rule, make, seeds), *of("frozen", frozen, seeds))


def of_rule(found: Audit, rule: str) -> RuleAudit:
    (one,) = [known for recipe in found.recipes for known in recipe.rules if known.rule == rule]
    return one


def answers(make: Make, question: str, rule: str = "dfa", **thresholds: float) -> list[AuditAnswer]:
    found = audit(with_frozen(rule, make), Thresholds(**thresholds))
    return [known.answers[question] for known in of_rule(found, rule).runs]


def replace(metric: str, value: Value, *, since: int = 0, until: int = EPOCHS, layers: tuple = ()) -> Make:
    """Healthy runs but for one metric, from one epoch to another, at some layers or at all."""
    return lambda seed: changed(
        healthy(seed),
        lambda name, epoch, layer: (
            value if name == metric and since <= epoch <= until and (not layers or layer in layers) else None
        ),
    )


def lacking(*metrics: str) -> Make:
    return lambda seed: without(healthy(seed), *metrics)


# Healthy


def test_a_healthy_run_fires_nothing() -> None:
    found = of_rule(audit(with_frozen("dfa")), "dfa")
    for known in found.runs:
        assert [answer.fired for answer in known.answers.values()] == [False] * 3
        assert all(known.answers[question].first_fired is None for question in ("D1", "D2", "D3"))
    assert found.margin.outcome == "helps"
    assert verdict(found) == "healthy"


# D1


def test_d1_fires_where_one_block_grows_beyond_the_threshold_and_names_the_epoch() -> None:
    for answer in answers(replace("growth", 1.9e3, since=8, layers=(2,)), "D1"):
        assert (answer.fired, answer.value) == (True, 1.9e3)
        assert (answer.first_fired, answer.since, answer.layers) == (8, 8, (2,))


def test_d1_does_not_fire_at_the_threshold() -> None:
    assert [answer.fired for answer in answers(replace("growth", 50.0), "D1")] == [False] * 3
    assert [answer.fired for answer in answers(replace("growth", 50.1), "D1")] == [True] * 3


def test_a_growth_that_has_passed_is_remembered_but_does_not_fire_at_the_end() -> None:
    make = replace("growth", 80.0, since=3, until=4)
    for answer in answers(make, "D1"):
        assert (answer.fired, answer.first_fired, answer.since) == (False, 3, None)
    words = sentence(of_rule(audit(with_frozen("dfa", make)), "dfa"))
    assert "‖h_L‖ is 1.8× its value at init. It was more than 50× over a block at epoch 3." in words


def test_a_second_firing_counts_from_its_own_beginning() -> None:
    def make(seed: int) -> dict[Key, Value]:
        return changed(
            healthy(seed),
            lambda m, epoch, layer: 99.0 if m == "growth" and epoch in (2, 7, 8, 9, 10) else None,
        )

    for answer in answers(make, "D1"):
        assert (answer.first_fired, answer.since) == (2, 7)


def test_d1_is_open_where_a_block_has_no_value_unless_another_fires() -> None:
    gap = "the state before the block is zero"
    for answer in answers(replace("growth", gap, layers=(1,)), "D1"):
        assert (answer.fired, answer.reason) == (None, f"block 1: {gap}")
        assert math.isnan(answer.value)

    def both(seed: int) -> dict[Key, Value]:
        return changed(
            replace("growth", gap, layers=(1,))(seed),
            lambda m, e, l: 60.0 if m == "growth" and l == 3 else None,
        )

    assert all(answer.fired for answer in answers(both, "D1"))


def test_d1_fires_where_the_last_state_has_grown_since_init_though_no_block_grows_it() -> None:
    """A LayerNorm on top hides it from the loss: the gradient falls as 1/‖h_L‖, and what is left of it stays."""

    def make(seed: int) -> dict[Key, Value]:
        def change(metric: str, epoch: int, layer: int | None) -> Value:
            if layer != DEPTH or epoch < 6:
                return None
            return {"hidden_norm": 12e4, "grad_per_error": 2.6e-4}.get(metric)

        return changed(healthy(seed), change)

    for answer in answers(make, "D1"):
        assert (answer.fired, answer.since, answer.layers) == (True, 6, ())
        assert answer.beside == pytest.approx(1e4)
    found = of_rule(audit(with_frozen("dfa", make)), "dfa")
    assert (found.stream().mean, found.scale_free().mean) == (pytest.approx(1e4), pytest.approx(1.3))
    assert verdict(found) == "D1"
    words = sentence(found)
    assert "‖h_L‖ is 1.0e4× its value at init. D1 fires from epoch 6: ‖h_L‖ more than 300× init." in words
    assert "hides the growth from the loss; ‖g_L‖·‖h_L‖/‖e‖ is 1.3× its value at init" in words


def with_norms(by_layer: Callable[[int, int], float]) -> Make:
    """Healthy runs but for ‖h‖, a function of epoch and layer."""
    return lambda seed: changed(
        healthy(seed),
        lambda name, epoch, layer: by_layer(epoch, layer) if name == "hidden_norm" and layer is not None else None,
    )


def test_d1_fires_where_the_stream_explodes_over_all_blocks_though_not_over_one() -> None:
    make = with_norms(lambda epoch, layer: 8.0 * 3.0**layer)
    for answer in answers(make, "D1"):
        assert (answer.fired, answer.layers) == (True, ())
    assert "more than 50× over all blocks" in sentence(of_rule(audit(with_frozen("dfa", make)), "dfa"))
    assert not any(answer.fired for answer in answers(with_norms(lambda epoch, layer: 8.0 * 2.0**layer), "D1"))


def test_d1_does_not_fire_where_a_signal_that_had_vanished_comes_back() -> None:
    for answer in answers(with_norms(lambda epoch, layer: 8.0 * (1e-4 if epoch == 0 else 0.5) ** layer), "D1"):
        assert answer.fired is False
        assert answer.beside > Thresholds().stream


def test_growth_that_the_loss_sees_is_not_called_hidden() -> None:
    make = replace("hidden_norm", 12e4, since=6, layers=(DEPTH,))  # the gradient per error stays
    assert "hides" not in sentence(of_rule(audit(with_frozen("dfa", make)), "dfa"))


# D2


def test_issue_27_item_2_a_small_gradient_below_a_layer_norm_is_no_fault_of_the_gradient() -> None:
    """‖g_L‖/‖e‖ falls as ‖h_L‖ grows: D2 asks whether training resolves the gradient, and it does."""
    for fallen in (1e-3, 1e-9, 0.0):
        for answer in answers(replace("grad_per_error", fallen, since=6), "D2"):
            assert (answer.fired, answer.first_fired) == (False, None)
            assert answer.value == pytest.approx(1, abs=1e-9)


def test_d2_fires_where_training_does_not_resolve_the_gradient_and_names_layers_and_epoch() -> None:
    make = replace("grad_resolution", 0.3, since=6, layers=(1, 2))
    for answer in answers(make, "D2"):
        assert (answer.fired, answer.first_fired, answer.since, answer.layers) == (True, 6, 6, (1, 2))
        assert answer.value == 0.3
    words = sentence(of_rule(audit(with_frozen("dfa", make)), "dfa"))
    assert "D2 fires from epoch 6: the BP gradient is not resolved at layers 1–2." in words
    assert "least cosine with the float64 gradient is 0.3" in words


def test_d2_fires_where_bps_own_gradient_does_not_foretell_the_loss() -> None:
    for answer in answers(replace("rho/bp", 0.5, layers=(3,)), "D2"):
        assert (answer.fired, answer.layers, answer.beside) == (True, (3,), 0.5)


def test_d2_does_not_fire_at_its_limits() -> None:
    for metric in ("grad_resolution", "rho/bp"):
        assert not any(answer.fired for answer in answers(replace(metric, 0.9), "D2"))
        assert all(answer.fired for answer in answers(replace(metric, 0.899), "D2"))


def test_d2_is_open_where_the_gradient_is_zero_in_the_precision_of_training() -> None:
    gap = "the gradient is zero in float32 and not in float64"
    for answer in answers(replace("grad_resolution", gap, layers=(2,)), "D2"):
        assert (answer.fired, answer.reason) == (None, f"grad_resolution at layer 2: {gap}")


def test_an_older_store_answers_d2_from_the_ceiling_and_says_what_was_not_measured() -> None:
    make = lacking("grad_resolution")
    for answer in answers(make, "D2"):
        assert (answer.fired, answer.beside) == (False, 0.99)
        assert math.isnan(answer.value)
        assert answer.reason == "grad_resolution was not measured at epoch 10"
    words = sentence(of_rule(audit(with_frozen("dfa", make)), "dfa"))
    assert "training resolves the BP gradient was not measured. Its least ρ in float64 is 0.99" in words
    assert "‖g_L‖·‖h_L‖/‖e‖ is 0.92× its value at init" in words
    for answer in answers(lacking("grad_resolution", "rho"), "D2"):
        assert answer.fired is None
        assert "train the run again" in (answer.reason or "")


# D3


@pytest.mark.parametrize("metric", ["credit_cosine", "rho"])
def test_d3_fires_where_either_measure_is_at_chance_and_says_that_they_disagree(metric: str) -> None:
    make = replace(metric, 0.001, layers=(1, 2, 3, 4))
    for answer in answers(make, "D3"):
        assert (answer.fired, answer.layers) == (True, (1, 2, 3, 4))
        assert answer.value < 3
    found = of_rule(audit(with_frozen("dfa", make)), "dfa")
    assert {layer.side for known in found.runs for layer in known.credits} == {"disagree"}
    sides = {"credit_cosine": "at chance by cosine but above chance by ρ at layers 1–4"}
    other = "above chance by cosine but at chance by ρ at layers 1–4"
    assert sides.get(metric, other) in sentence(found)


def both(value: float) -> Make:
    """Cosine and ρ with this value at every layer, around a null of 0."""
    return lambda seed: changed(
        healthy(seed),
        lambda m, e, l: (
            0.0 if m in ("credit_cosine/null", "rho/null") else value if m in ("credit_cosine", "rho") else None
        ),
    )


@pytest.mark.parametrize(
    ("value", "side", "words"),
    [(0.5, "above", "above chance"), (0.01, "at", "at chance"), (-0.5, "below", "below chance")],
)
def test_a_layer_is_above_at_or_below_chance_and_below_is_called_below(value: float, side: str, words: str) -> None:
    found = of_rule(audit(with_frozen("dfa", both(value))), "dfa")
    assert {layer.side for known in found.runs for layer in known.credits} == {side}
    assert f"The credit is {words} at layers 1–4." in sentence(found)
    assert found.tally("D3").fired.keys() == (set() if side == "above" else set(SEEDS))


def test_a_mean_cosine_carried_by_layer_0_does_not_pass() -> None:
    """.42 at layer 0 and nothing deeper, as DFA was recorded."""

    def recorded(seed: int) -> dict[Key, Value]:
        return changed(healthy(seed, cosine=0.42), lambda m, e, l: 0.002 if m == "credit_cosine" and l else None)

    assert all(answer.fired for answer in answers(recorded, "D3"))


def test_an_exact_gradient_at_the_last_layer_is_not_chance_and_does_not_carry_the_others() -> None:
    """Drawn anew, the rule gives that layer the same credit: there is nothing to judge."""
    at_top = {"credit_cosine": 1.0, "rho": 0.99}
    at_top |= {f"{metric}/null": value for metric, value in at_top.items()}
    at_top |= {"credit_cosine/null_std": 0.0, "rho/null_std": 0.0}

    def fa(cosine: float) -> Make:
        return lambda seed: changed(
            healthy(seed),
            lambda m, e, l: at_top.get(m) if l == DEPTH else cosine if m in ("credit_cosine", "rho") else None,
        )

    for answer in answers(fa(0.0), "D3", rule="fa"):
        assert (answer.fired, answer.layers) == (True, (1, 2, 3))
    for answer in answers(fa(0.5), "D3", rule="fa"):
        assert answer.fired is False
    words = sentence(of_rule(audit(with_frozen("fa", fa(0.5))), "fa"))
    assert "The credit is above chance at layers 1–3. It is the exact gradient at layer 4." in words


def test_a_gain_that_the_rule_draws_by_chance_too_is_not_credited() -> None:
    def same_as_null(seed: int) -> dict[Key, Value]:
        return changed(
            healthy(seed), lambda m, e, l: 0.5 + 0.01 * math.sin(seed) if m == "credit_cosine/null" else None
        )

    assert all(answer.fired for answer in answers(same_as_null, "D3"))


def test_d3_judges_by_the_spread_over_the_draws_of_the_same_snapshot_with_students_t() -> None:
    """With 20 draws, 3 standard deviations of a normal variable are 3.45·√(1 + 1/20) of theirs."""
    limit = 3.4471 * math.sqrt(1 + 1 / DRAWS)

    def at(excess: float) -> Make:
        return lambda seed: changed(
            healthy(seed),
            lambda m, e, l: 0.0 if m == "credit_cosine/null" else excess * 0.02 if m == "credit_cosine" else None,
        )

    assert all(answer.fired for answer in answers(at(0.99 * limit), "D3"))
    assert not any(answer.fired for answer in answers(at(1.01 * limit), "D3"))
    assert not any(answer.fired for answer in answers(at(0.99 * limit), "D3", deviations=2.0))
    found = of_rule(audit(with_frozen("dfa", at(limit))), "dfa")
    cosine = found.runs[0].credits[0].cosine
    assert (cosine.null, cosine.null_std, cosine.draws) == (0.0, 0.02, DRAWS)
    assert cosine.excess == pytest.approx(3.4471)


def test_students_t_keeps_a_false_excess_as_rare_with_few_draws_as_it_is_of_a_normal_variable() -> None:
    """4 draws, and the rule's own value one more: 2 standard deviations are exceeded by 2.3 % of chance, not by 7 %."""
    rng, trials, draws = random.Random(1), 20_000, 4
    exceeded = naive = 0
    for _ in range(trials):
        own, *others = (rng.gauss(0, 1) for _ in range(draws + 1))
        mean, std = statistics.fmean(others), statistics.stdev(others)
        exceeded += (own - mean) / (std * math.sqrt(1 + 1 / draws)) > critical_t(2.0, draws)
        naive += own - mean > 2 * std
    assert exceeded / trials == pytest.approx(0.0228, abs=0.004)
    assert naive / trials > 0.06


def test_a_null_that_was_not_drawn_as_the_rule_draws_leaves_d3_undefined() -> None:
    """Stores of an older version have one random vector a sample, which scatters too little."""

    def older(seed: int) -> dict[Key, Value]:
        return {key: value for key, value in healthy(seed).items() if not key[0].endswith("/null_std")}

    for answer in answers(older, "D3"):
        assert answer.fired is None
        assert "its null is of an older version: train the run again" in (answer.reason or "")


@pytest.mark.parametrize("ceiling", [0.31, "below what float64 resolves"])
def test_the_ceiling_decides_whether_the_credit_may_be_read_at_all(ceiling: Value) -> None:
    make = replace("rho/bp", ceiling, since=7, layers=(2,))
    for answer in answers(make, "D3"):
        assert answer.fired is None
        assert (answer.reason or "").startswith("not evidence: ρ of BP's own gradient is ")
        assert "at layer 2" in (answer.reason or "")
        early = answer.at(5)
        assert early is not None
        assert early.fired is False
    found = audit(with_frozen("dfa", make))
    at = list(audit_columns(found.recipes[0])).index("cosine, layers 1–3 (null, BP)")
    d2 = "none fired; D2 undefined, D3 not evidence" if isinstance(ceiling, str) else "D2; D3 not evidence"
    assert verdict(of_rule(found, "dfa")) == d2
    assert audit_rows(found.recipes[0])[0][at].endswith("†")
    assert any("DFA: † not evidence: ρ of BP's own gradient" in note for note in audit_footnotes(found.recipes[0]))
    if not isinstance(ceiling, str):
        assert not any(answer.fired is None for answer in answers(make, "D3", ceiling=0.3))


def test_a_gradient_that_training_does_not_resolve_does_not_bar_the_credit_which_is_read_in_float64() -> None:
    for answer in answers(replace("grad_resolution", 0.1, since=7), "D3"):
        assert answer.fired is False


def test_credit_of_bp_is_fine_even_when_its_gradient_is_small() -> None:
    for answer in answers(replace("grad_per_error", 1e-9, since=7), "D3", rule="bp"):
        assert (answer.fired, answer.note) == (False, "its credit is the gradient itself")


def test_frozen_blocks_get_no_credit() -> None:
    found = of_rule(audit(with_frozen("dfa")), "frozen")
    for known in found.runs:
        assert not known.answers["D3"].asked
        assert known.answers["D3"].reason == "no credit is assigned to layers 1–4"
    assert (found.margin.asked, found.margin.reason) == (False, "it is the baseline")
    assert verdict(found) == "baseline"


def test_an_undefined_rho_is_not_taken_for_zero() -> None:
    why = "the credit predicts the same change everywhere"
    for answer in answers(replace("rho", why, layers=(3,)), "D3"):
        assert (answer.fired, answer.reason) == (None, f"ρ at layer 3: {why}")


def test_without_rho_there_is_no_ceiling_and_d3_stays_open() -> None:
    for answer in answers(lacking("rho"), "D3"):
        assert (answer.fired, answer.reason) == (None, "ρ not measured at layers 1–4")


# D4


def accuracies(rule: tuple[float, ...], base: tuple[float, ...], **thresholds: float) -> RuleAudit:
    """dfa and frozen with these test accuracies at the end, by seed."""

    def at(values: tuple[float, ...]) -> list:
        seeds = range(1, len(values) + 1)
        return of("dfa", lambda seed: {("test_acc", EPOCHS, None): values[seed - 1]}, tuple(seeds))

    frozen_runs = [
        run(config("frozen", seed), {("test_acc", EPOCHS, None): value}) for seed, value in enumerate(base, 1)
    ]
    return of_rule(audit(store(*at(rule), *frozen_runs), Thresholds(**thresholds)), "dfa")


def test_d4_is_the_paired_t_interval_over_seeds_as_compare_takes_it() -> None:
    found = accuracies((0.25, 0.32, 0.43, 0.27), (0.2, 0.3, 0.4, 0.25))
    assert found.margin.by_seed == {1: 5.0, 2: 2.0, 3: 3.0, 4: 2.0}
    half = 3.182446 * math.sqrt(2) / 2  # s = √2, n = 4
    assert (found.margin.interval.low, found.margin.interval.high) == pytest.approx((3 - half, 3 + half))
    assert found.margin.outcome == "helps"
    stored = store(
        *of("dfa", lambda s: {("test_acc", EPOCHS, None): (0.25, 0.32, 0.43, 0.27)[s - 1]}, (1, 2, 3, 4)),
        *of("frozen", lambda s: {("test_acc", EPOCHS, None): (0.2, 0.3, 0.4, 0.25)[s - 1]}, (1, 2, 3, 4)),
    )
    compared = compare(stored, baseline="frozen").differences[0].interval
    assert (100 * compared.low, 100 * compared.high) == pytest.approx((3 - half, 3 + half))


def test_d4_says_which_share_of_frozens_errors_is_removed() -> None:
    found = accuracies((0.95, 0.95, 0.96), (0.9, 0.9, 0.92))
    assert found.margin.errors_removed == pytest.approx(0.5)
    assert "blocks help: +4.67 [+3.23, +6.1] points of test accuracy over frozen blocks, n = 3; " in sentence(found)
    assert "50.0 % of the errors of frozen blocks removed" in sentence(found)
    assert verdict(found).startswith("none fired; D1 undefined")


def test_blocks_that_hurt_are_a_verdict_of_their_own() -> None:
    found = accuracies((0.5, 0.52, 0.51), (0.7, 0.71, 0.7))
    assert found.margin.outcome == "hurts"
    assert "D4 hurts" in verdict(found)
    assert "blocks hurt: −19.3 [" in sentence(found)
    assert "65.2 % more errors than frozen blocks" in sentence(found)


def test_an_interval_that_holds_0_is_undecided_and_says_how_many_seeds_would_decide() -> None:
    found = accuracies((0.52, 0.5, 0.53), (0.5, 0.51, 0.5))  # +2, −1, +3
    assert found.margin.outcome == "undecided"
    needed = found.margin.seeds_needed
    assert needed is not None
    mean, std = found.margin.points.mean, found.margin.points.std
    assert t_power(mean / std, needed) >= 0.8 > t_power(mean / std, needed - 1)
    said = sentence(found)
    assert "undecided: +1.33 points of test accuracy over frozen blocks, n = 3 (the interval [−3.84, +6.5]" in said
    assert f"{needed} seeds would be enough (power 80%)" in said
    assert "D4 undecided" in verdict(found)
    assert accuracies((0.52, 0.5, 0.53), (0.5, 0.51, 0.5), confidence=0.5).margin.outcome == "helps"


def test_issue_27_item_6_of_five_rules_of_one_table_one_that_helps_alone_is_undecided_by_holm() -> None:
    """An interval of 95 % excludes 0 by chance in one of twenty rules: the tests of a table are corrected together."""
    noise = {42: 0.0, 123: 0.004, 456: -0.004}

    def reaching(gain: float, spread: float) -> Make:
        return lambda seed: healthy(seed, accuracy=0.5 + gain + spread * noise[seed])

    rules = {"fa": (0.05, 3.0), "dfa": (0.0, 3.0), "usf": (0.0, 4.0), "brsf": (0.0, 5.0), "frsf": (0.0, 6.0)}
    frozen_ = of("frozen", lambda seed: healthy(seed, accuracy=0.5))
    alone = audit(store(*of("fa", reaching(*rules["fa"])), *frozen_))
    together = audit(store(*(one for rule, how in rules.items() for one in of(rule, reaching(*how))), *frozen_))
    first, corrected = of_rule(alone, "fa").margin, of_rule(together, "fa").margin
    assert first.interval == corrected.interval
    assert first.interval.low > 0
    assert (first.outcome, corrected.outcome) == ("helps", "undecided")
    assert corrected.tests == 5
    assert corrected.chance == pytest.approx(first.chance)
    assert corrected.adjusted == pytest.approx(5 * first.chance)
    assert 0.01 < first.chance < 0.05 <= corrected.adjusted
    assert "D4 undecided" in verdict(of_rule(together, "fa"))
    assert "Holm" in sentence(of_rule(together, "fa"))


def test_no_number_of_seeds_decides_where_there_is_no_difference() -> None:
    found = accuracies((0.5, 0.6), (0.6, 0.5))
    assert (found.margin.outcome, found.margin.seeds_needed) == ("undecided", None)
    assert "no number of seeds would be enough" in sentence(found)


def test_differences_that_happen_to_be_the_same_do_not_make_the_verdict_certain() -> None:
    """Accuracies are counts: of two seeds the differences coincide now and then."""
    found = accuracies((0.6, 0.7), (0.5, 0.6))
    assert found.margin.outcome == "undecided"
    assert "+10 points of test accuracy over frozen blocks, n = 2 (all 2 values are the same" in sentence(found)


def test_with_one_seed_d4_is_undecided_and_says_why() -> None:
    found = accuracies((0.9,), (0.5,))
    assert found.margin.outcome == "undecided"
    assert "undecided: +40 points of test accuracy over frozen blocks, n = 1 (an interval needs two seeds" in sentence(
        found
    )


def test_without_a_frozen_baseline_of_this_recipe_d4_is_undefined_and_unpaired_seeds_are_named() -> None:
    alone = of_rule(audit(store(*of("dfa"))), "dfa")
    assert (alone.margin.outcome, alone.margin.reason) == (None, "there is no frozen baseline of this recipe")
    other = audit(store(*of("dfa"), *of("frozen", frozen, model__L=8)))
    assert of_rule(other, "dfa").margin.reason == "there is no frozen baseline of this recipe"
    found = audit(store(*of("dfa"), *of("frozen", frozen, seeds=(42, 123))))
    partly = of_rule(found, "dfa")
    assert (partly.margin.points.n, partly.margin.outcome) == (2, "helps")
    assert partly.margin.without == {456: "it has no partner in the baseline"}
    assert "n = 2" in sentence(partly)
    assert any("seed 456 is not paired with frozen" in note for note in audit_footnotes(found.recipes[0]))


def test_several_frozen_baselines_are_not_averaged() -> None:
    two = store(*of("dfa"), *of("frozen", frozen), *of("frozen", frozen, rule__penalty=0.1))
    found = [known for recipe in audit(two).recipes for known in recipe.rules if known.rule == "dfa"]
    assert "several frozen baselines" in (found[0].margin.reason or "")


# What is missing


@pytest.mark.parametrize(
    ("metrics", "question", "says"),
    [
        (("growth",), "D1", "growth was not measured"),
        (("grad_resolution", "rho"), "D2", "neither grad_resolution nor rho/bp was measured"),
        (("credit_cosine", "rho"), "D3", "cosine and ρ not measured"),
        (("test_acc",), "D4", "test_acc was not measured"),
    ],
)
def test_each_question_says_what_is_missing(metrics: tuple[str, ...], question: str, says: str) -> None:
    make = lacking(*metrics)
    found = audit(with_frozen("dfa", make))
    assert says in sentence(of_rule(found, "dfa"))
    assert f"{question} undefined" in verdict(of_rule(found, "dfa"))


# Recipes, rules and seeds


def test_runs_are_grouped_by_everything_but_rule_and_seed() -> None:
    stored = store(*of("bp"), *of("dfa"), *of("bp", model__out_ln=False), *of("bp", model__L=4, epochs=EPOCHS))
    found = audit(store(*{known.id: (known, frame_of(stored, known.id)) for known in stored.runs}.values()))
    assert len(found.recipes) == 2
    assert [[known.rule for known in recipe.rules] for recipe in found.recipes] == [["bp", "dfa"], ["bp"]]
    assert "model.out_ln = false" in found.recipes[1].title


def test_a_recipe_is_named_by_no_more_than_tells_it_from_its_namesakes() -> None:
    stored = store(
        *of("bp"),
        *of("bp", optimiser__lr=0.5),
        *of("bp", probes__size=7, probes__names=("loss",)),
        *of("bp", model__L=5),
        *of("bp", model__L=5, probes__names=("loss",)),
    )
    recipes = audit(stored).recipes
    lr, size = (recipes[0].recipe[key] for key in ("optimiser.lr", "probes.size"))
    rest = [recipe.title.partition(" epochs")[2] for recipe in recipes]
    assert rest[0] == f", optimiser.lr = {lr}, probes.size = {size}"
    assert rest[1] == f", optimiser.lr = 0.5, probes.size = {size}"
    assert rest[2] == f", optimiser.lr = {lr}, probes.size = 7"
    assert rest[3].startswith(", probes.names = [")
    assert rest[4] == ', probes.names = ["loss"]'


def frame_of(stored: Runs, id: str) -> pl.DataFrame:
    return stored.rows.filter(run=id).unique(maintain_order=True)


def test_variants_of_a_rule_are_told_apart_by_the_options_that_differ() -> None:
    found = audit(store(*of("dfa"), *of("dfa", rule__penalty=0.01)))
    assert [known.label for known in found.recipes[0].rules] == [
        "DFA",
        "DFA (penalty=0.01)",
    ]


def test_the_table_puts_bp_first_and_frozen_last() -> None:
    found = audit(store(*of("frozen", frozen), *of("fa"), *of("bp"), *of("dfa")))
    assert [known.rule for known in found.recipes[0].rules] == ["bp", "dfa", "fa", "frozen"]


def test_runs_that_have_not_ended_are_left_out_named_and_counted() -> None:
    lost = run(config("dfa", 7), healthy(7), state="failed")
    found = audit(store(*of("dfa"), lost))
    assert found.left_out == {lost[0].id: "it is failed"}
    rule = of_rule(found, "dfa")
    assert rule.seeds == sorted(SEEDS)
    assert "1 more run did not complete" in sentence(rule)
    with pytest.raises(SondeError, match="no complete run"):
        audit(store(lost))


def test_a_run_that_diverged_gets_a_verdict_with_its_epoch_and_is_not_averaged() -> None:
    lost = run(config("dfa", 7), replace("growth", 1e9)(7), state="diverged", epoch=6)
    found = audit(store(*of("dfa"), lost))
    assert found.left_out == {}
    rule = of_rule(found, "dfa")
    assert rule.seeds == sorted(SEEDS)
    assert rule.value("D1").mean == pytest.approx(1.5)
    assert verdict(rule).startswith("diverged at epoch 6 (1 of 4)")
    assert sentence(rule).startswith("DFA on digits: Diverged at epoch 6 in 1 of 4 seeds (7); the other numbers are")
    assert "‖h‖ grows up to 1.5×" in sentence(rule)


def test_a_rule_of_which_every_run_diverged_has_a_line_and_a_verdict() -> None:
    found = audit(store(*(run(config("dfa", seed), healthy(seed), state="diverged", epoch=seed) for seed in (3, 5))))
    rule = of_rule(found, "dfa")
    assert (rule.seeds, verdict(rule)) == ([], "diverged at epochs 3–5")
    assert sentence(rule) == "DFA on digits: Diverged at epochs 3–5 in 2 of 2 seeds (3, 5)."
    (line,) = audit_rows(found.recipes[0])
    assert line[:3] == ["DFA", "0", "undefined"]
    assert any("no run is complete" in note for note in audit_footnotes(found.recipes[0]))
    assert as_json(found)[0]["diverged"][0]["epoch"] == 3


def test_there_is_no_vote_over_seeds_the_verdict_counts_them() -> None:
    def one_of_three(seed: int) -> dict[Key, Value]:
        return replace("growth", 200.0, since=4, layers=(2,))(seed) if seed == 123 else healthy(seed)

    found = of_rule(audit(with_frozen("dfa", one_of_three)), "dfa")
    assert verdict(found) == "D1 (1 of 3)"
    assert "from epoch 4 in 1 of 3 seeds (123): more than 50× over block 2." in sentence(found)


def test_sentence_and_table_quote_the_same_seeds() -> None:
    """Also where a question fires in one of them: the number is that of all, and the seed is named."""

    def one_of_three(seed: int) -> dict[Key, Value]:
        return replace("growth", 200.0)(seed) if seed == 123 else healthy(seed)

    found = audit(with_frozen("dfa", one_of_three))
    line = dict(zip(audit_columns(found.recipes[0]), audit_rows(found.recipes[0])[0], strict=True))
    assert line["largest growth over a block"].startswith("68 ±")
    assert "‖h‖ grows up to 68× over a block" in sentence(of_rule(found, "dfa"))


def test_thresholds_are_configuration() -> None:
    assert not any(answer.fired for answer in answers(replace("growth", 80.0), "D1", growth=100.0))
    assert all(answer.fired for answer in answers(replace("grad_resolution", 0.95), "D2", resolution=0.96))
    assert all(answer.fired for answer in answers(healthy, "D1", stream=1.2))
    for name, value in (("growth", math.nan), ("confidence", 1.0)):
        with pytest.raises(SondeError, match=f"{name} = {value}"):
            Thresholds(**{name: value})


# What made the runs


def made(version: str, commit: str, dirty: bool = False) -> list[dict]:
    packages = {"sonde": version, "torch": "2.9"}
    return [{"environment": {"packages": packages, "git": {"commit": commit * 10, "dirty": dirty}}}]


def test_runs_of_several_versions_commits_or_dirty_trees_are_named() -> None:
    def found(*sessions: list[dict]) -> list[str]:
        runs = (run(config("dfa", seed), healthy(seed), sessions=made) for seed, made in enumerate(sessions))
        return audit_footnotes(audit(store(*runs)).recipes[0])

    one, other = made("0.1.0", "a1b2"), made("0.2.0", "a1b2")
    assert not any("same code" in note or "uncommitted" in note for note in found(one, one))
    (said,) = [note for note in found(one, one, other) if "same code" in note]
    assert "sonde 0.1.0 (commit a1b2a1b2a1), torch 2.9 (2 runs); sonde 0.2.0" in said
    assert any("commit ffff" in note for note in found(one, made("0.1.0", "ffff")))
    dirty = made("0.1.0", "a1b2", dirty=True)
    assert any("with uncommitted changes" in note for note in found(dirty, dirty))
    assert any("not all made with the same code" in note for note in found(one, dirty))
    resumed = [*one, *other]
    assert any("torch 2.9, then sonde 0.2.0" in note for note in found(one, resumed))


# Means over layers and seeds


def test_a_mean_over_layers_names_them_and_is_undefined_where_one_of_them_is() -> None:
    found = audit(with_frozen("dfa"))
    cosine = of_rule(found, "dfa").controlled("credit_cosine")
    assert cosine.layers == (1, 2, 3)
    assert "cosine, layers 1–3 (null, BP)" in audit_columns(found.recipes[0])
    gap = audit(with_frozen("dfa", replace("credit_cosine", "a norm is zero", layers=(2,))))
    cosine = of_rule(gap, "dfa").controlled("credit_cosine")
    assert (cosine.value.n, cosine.value.reason) == (0, "layer 2: a norm is zero")
    assert (cosine.null.n, cosine.ceiling.mean) == (3, 1.0)


def test_layers_are_not_pooled_as_if_they_were_seeds() -> None:
    def layered(seed: int) -> dict[Key, Value]:
        return changed(healthy(seed), lambda m, e, l: l / 10 + seed / 1e4 if m == "credit_cosine" and l else None)

    cosine = of_rule(audit(with_frozen("dfa", layered)), "dfa").controlled("credit_cosine").value
    means = [0.2 + seed / 1e4 for seed in SEEDS]
    centre = sum(means) / 3
    assert cosine.n == 3
    assert cosine.mean == pytest.approx(centre)  # of layers 1–3: neither 0 nor 4 is in it
    assert cosine.std == pytest.approx(math.sqrt(sum((mean - centre) ** 2 for mean in means) / 2))


# Nothing raises


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_audit_never_raises_whatever_is_missing_or_undefined(data: st.DataObject) -> None:
    values = st.one_of(
        st.none(),
        st.just("a reason"),
        st.floats(allow_nan=True, allow_infinity=True),
        st.sampled_from([0.0, 1e-320, 1e300, -1e300, 1.0]),
    )
    keys = st.tuples(
        st.sampled_from(AUDIT_METRICS), st.integers(0, EPOCHS), st.one_of(st.none(), st.integers(0, DEPTH))
    )
    runs = []
    for rule in data.draw(st.lists(st.sampled_from(["bp", "dfa", "fa", "frozen"]), min_size=1, unique=True)):
        for seed in data.draw(st.lists(st.sampled_from(SEEDS), min_size=1, unique=True)):
            noise = data.draw(st.dictionaries(keys, values, max_size=12))
            dropped = data.draw(st.sets(st.sampled_from(AUDIT_METRICS)))
            start = healthy(seed) if data.draw(st.booleans()) else {}
            kept = {key: value for key, value in start.items() if key[0] not in dropped}
            runs.append(run(config(rule, seed), kept | noise))
    found = audit(store(*runs))
    assert len(as_json(found)) == sum(len(recipe.rules) for recipe in found.recipes)
    for recipe in found.recipes:
        assert all(len(line) == len(audit_columns(recipe)) for line in audit_rows(recipe))
        audit_footnotes(recipe)
        for rule in recipe.rules:
            assert sentence(rule)
            assert not any(word in f"{sentence(rule)} {verdict(rule)}" for word in ("nan", "inf ", "None"))
            for known in rule.runs:
                for answer in known.answers.values():
                    assert answer.fired is not None or answer.reason


# Real runs


def test_trained_runs_are_audited_from_their_store(tmp_path: Path) -> None:
    for rule in (DirectFeedback(), Frozen()):
        for seed in (1, 2):
            train(
                tiny_config(
                    model=ResidualMLP(d=8, L=2),
                    task=Digits(),
                    rule=rule,
                    probes=Probing(names=("hidden_norm", "growth", "grad_norm"), costly=(), size=32),
                    batch_size=256,
                    epochs=1,
                    log="epoch",
                    seed=seed,
                ),
                runs=tmp_path,
            )
    found = audit(load(tmp_path))
    assert [known.rule for known in found.recipes[0].rules] == ["dfa", "frozen"]
    for known in found.recipes[0].rules:
        assert (len(known.runs), known.scalar("test_acc").n) == (2, 2)
        assert known.tally("D1").clear.keys() == {1, 2}
        assert known.tally("D2").clear.keys() == {1, 2}
    dfa = of_rule(found, "dfa")
    assert dfa.margin.points.n == 2
    assert "not measured" in (dfa.tally("D3").reason or "")


@pytest.mark.parametrize("study", ["residual", "audit"])
def test_an_audit_reads_what_it_needs_of_a_store_and_finds_what_all_rows_tell(study: str, tmp_path: Path) -> None:
    root = unpack(study, tmp_path)
    needed, whole = read_for_audit(root), load(root)
    assert set(needed.rows["metric"]) < set(whole.rows["metric"])
    assert repr(as_json(audit(needed))) == repr(as_json(audit(whole)))
