"""The four questions: each fires and does not, names its epoch, or says what is missing."""

import math
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_runs import (
    DEPTH,
    EPOCHS,
    SAMPLES,
    WIDTH,
    Key,
    Value,
    changed,
    config,
    healthy,
    run,
    store,
    without,
)

from conftest import tiny_config
from sonde.audit.answer import Answer
from sonde.audit.audit import Audit, audit
from sonde.audit.objects import objects
from sonde.audit.sentence import sentence, verdict
from sonde.audit.subject import NEEDED
from sonde.audit.table import columns, footnotes, lines
from sonde.audit.thresholds import Thresholds
from sonde.audit.verdict import RuleAudit
from sonde.config import Probing
from sonde.errors import SondeError
from sonde.models import ResidualMLP
from sonde.rules import DirectFeedback, Frozen
from sonde.store.load import Runs, load
from sonde.tasks import Digits
from sonde.training.train import train

SEEDS = (42, 123, 456)
Make = Callable[[int], dict[Key, Value]]


def frozen(seed: int) -> dict[Key, Value]:
    zero = "every credit or gradient is zero"
    return changed(
        healthy(seed, accuracy=0.35),
        lambda metric, epoch, layer: (
            zero if metric in ("credit_cosine", "rho", "nudge[0.01]") and layer else None
        ),
    )


def of(rule: str, make: Make = healthy, seeds: tuple[int, ...] = SEEDS, **changes: object) -> list:
    return [run(config(rule, seed, **changes), make(seed)) for seed in seeds]


def with_frozen(rule: str, make: Make = healthy, seeds: tuple[int, ...] = SEEDS) -> Runs:
    return store(*of(rule, make, seeds), *of("frozen", frozen, seeds))


def of_rule(found: Audit, rule: str) -> RuleAudit:
    (one,) = [known for recipe in found.recipes for known in recipe.rules if known.rule == rule]
    return one


def answers(make: Make, question: str, rule: str = "dfa", **thresholds: float) -> list[Answer]:
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
        assert [answer.fired for answer in known.answers.values()] == [False] * 4
        assert all(known.answers[question].first_fired is None for question in ("D1", "D2", "D3"))
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
    assert "‖h‖ grows at most 1.5× per block at the end, after more than 50× at epoch 3" in words


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


# D2


def test_d2_fires_where_the_gradient_collapses_relative_to_init_and_names_the_epoch() -> None:
    for answer in answers(replace("grad_norm", 9e-5, since=6), "D2"):
        assert (answer.fired, answer.first_fired, answer.since) == (True, 6, 6)
        assert answer.value == pytest.approx(9e-5)


def test_d2_is_about_the_last_layer_and_relative_to_init() -> None:
    assert not any(answer.fired for answer in answers(replace("grad_norm", 0.0, layers=(0, 1, 2, 3)), "D2"))

    def small_from_the_start(seed: int) -> dict[Key, Value]:
        return changed(healthy(seed), lambda m, e, l: 1e-9 if m == "grad_norm" else None)

    assert [answer.value for answer in answers(small_from_the_start, "D2")] == [1.0] * 3


def test_d2_fires_for_a_gradient_that_is_exactly_zero() -> None:
    assert all(answer.fired for answer in answers(replace("grad_norm", 0.0, since=5), "D2"))


def test_d2_is_undefined_without_init_or_with_a_zero_gradient_there() -> None:
    for answer in answers(replace("grad_norm", 0.0), "D2"):
        assert (answer.fired, answer.reason) == (None, "the gradient at init is zero")

    def headless(seed: int) -> dict[Key, Value]:
        return {key: v for key, v in healthy(seed).items() if key[:2] != ("grad_norm", 0)}

    for answer in answers(headless, "D2"):
        assert (answer.fired, answer.reason) == (None, "grad_norm was not measured at epoch 0")


# D3


@pytest.mark.parametrize("metric", ["credit_cosine", "rho"])
def test_d3_fires_where_either_measure_is_at_chance(metric: str) -> None:
    for answer in answers(replace(metric, 0.001, layers=(1, 2, 3, 4)), "D3"):
        assert (answer.fired, answer.layers) == (True, (1, 2, 3, 4))
        assert answer.value < 3


def test_a_mean_cosine_carried_by_layer_0_does_not_pass() -> None:
    """.42 at layer 0 and nothing deeper, as DFA was recorded."""

    def recorded(seed: int) -> dict[Key, Value]:
        return changed(
            healthy(seed, cosine=0.42), lambda m, e, l: 0.002 if m == "credit_cosine" and l else None
        )

    assert all(answer.fired for answer in answers(recorded, "D3"))


def test_an_exact_gradient_at_the_last_layer_does_not_carry_the_others() -> None:
    def fa(seed: int) -> dict[Key, Value]:
        return changed(
            healthy(seed),
            lambda m, e, l: (1.0 if l == DEPTH else 0.0) if m == "credit_cosine" and l else None,
        )

    for answer in answers(fa, "D3", rule="fa"):
        assert (answer.fired, answer.layers) == (True, (1, 2, 3))


def test_a_gain_that_a_random_vector_produces_too_is_not_credited() -> None:
    def same_as_null(seed: int) -> dict[Key, Value]:
        return changed(
            healthy(seed), lambda m, e, l: 0.5 + 0.01 * math.sin(seed) if m == "credit_cosine/null" else None
        )

    assert all(answer.fired for answer in answers(same_as_null, "D3"))


def test_d3_uses_the_spread_of_the_null_over_seeds() -> None:
    def noisy(seed: int) -> dict[Key, Value]:
        nulls = dict(zip(SEEDS, (-0.2, 0.0, 0.2), strict=True))
        return changed(healthy(seed), lambda m, e, l: nulls[seed] if m == "credit_cosine/null" else None)

    found = of_rule(audit(with_frozen("dfa", noisy)), "dfa")
    null = next(layer.null for layer in found.runs[0].credits if layer.metric == "credit_cosine")
    assert (null.mean, null.standard_error) == (pytest.approx(0), pytest.approx(0.2))
    assert null.basis == "spread over 3 seeds"
    assert all(known.answers["D3"].fired for known in found.runs)  # 0.5 is not above 3 × 0.2
    assert any(
        "spread over 3 seeds" in note for note in footnotes(audit(with_frozen("dfa", noisy)).recipes[0])
    )


def test_d3_with_one_seed_uses_the_standard_error_of_independent_samples() -> None:
    found = of_rule(audit(with_frozen("dfa", seeds=(42,))), "dfa")
    cosine, rho = (
        next(layer.null for layer in found.runs[0].credits if layer.metric == metric)
        for metric in ("credit_cosine", "rho")
    )
    assert cosine.standard_error == pytest.approx(1 / math.sqrt(WIDTH * SAMPLES))
    assert cosine.basis == "1/√(d·N)"
    assert rho.standard_error == pytest.approx(math.sqrt((1 / WIDTH + 1 / 32) / SAMPLES))
    assert found.runs[0].answers["D3"].fired is False


def test_two_nulls_that_happen_to_agree_do_not_make_chance_certain() -> None:
    def agreeing(seed: int) -> dict[Key, Value]:
        return changed(
            healthy(seed),
            lambda m, e, l: (
                1e-5 if m == "credit_cosine/null" else 2e-3 if m == "credit_cosine" and l else None
            ),
        )

    assert all(answer.fired for answer in answers(agreeing, "D3"))


def test_d3_fires_unless_the_credit_is_above_by_so_many_standard_errors() -> None:
    error = 1 / math.sqrt(WIDTH * SAMPLES)

    def at(excess: float) -> Make:
        return lambda seed: changed(
            healthy(seed),
            lambda m, e, l: (
                0.0 if m == "credit_cosine/null" else excess * error if m == "credit_cosine" else None
            ),
        )

    assert all(answer.fired for answer in answers(at(2.9), "D3"))
    assert not any(answer.fired for answer in answers(at(3.1), "D3"))
    assert not any(answer.fired for answer in answers(at(2.9), "D3", standard_errors=2.0))


def test_d2_decides_whether_the_cosine_may_be_read_at_all() -> None:
    collapsed = replace("grad_norm", 1e-9, since=7)
    for answer in answers(collapsed, "D3"):
        assert answer.fired is None
        assert answer.reason == "not evidence: the BP gradient has collapsed (D2)"
        early = answer.at(6)
        assert early is not None
        assert early.fired is False
    for answer in answers(lacking("grad_norm"), "D3"):
        assert answer.fired is None
        assert "not evidence: D2 was not answered" in (answer.reason or "")


def test_credit_of_bp_is_fine_even_when_its_gradient_is_small() -> None:
    for answer in answers(replace("grad_norm", 1e-9, since=7), "D3", rule="bp"):
        assert (answer.fired, answer.note) == (False, "its credit is the gradient itself")


def test_frozen_blocks_get_no_credit() -> None:
    found = of_rule(audit(with_frozen("dfa")), "frozen")
    for known in found.runs:
        assert not known.answers["D3"].asked
        assert known.answers["D3"].reason == "no credit is assigned to layers 1–4"
        assert known.answers["D4"].reason == "it is the baseline"
    assert verdict(found) == "baseline"


def test_an_undefined_rho_is_not_taken_for_zero() -> None:
    why = "differences are below the resolution of the arithmetic"
    for answer in answers(replace("rho", why, layers=(3,)), "D3"):
        assert (answer.fired, answer.reason) == (None, f"ρ at layer 3: {why}")


def test_d3_says_that_rho_was_not_measured_and_judges_by_the_cosine() -> None:
    for answer in answers(lacking("rho"), "D3"):
        assert (answer.fired, answer.note) == (False, f"ρ was not measured at epoch {EPOCHS}")


# D4


def test_d4_is_the_margin_over_frozen_paired_by_seed() -> None:
    base = dict(zip(SEEDS, (0.2, 0.3, 0.4), strict=True))
    rule = dict(zip(SEEDS, (0.25, 0.31, 0.38), strict=True))

    def at(accuracy: dict[int, float]) -> Make:
        return lambda seed: {("test_acc", EPOCHS, None): accuracy[seed]}

    found = of_rule(audit(store(*of("dfa", at(rule)), *of("frozen", at(base)))), "dfa")
    given = [known.answers["D4"] for known in found.runs]
    assert [answer.value for answer in given] == [pytest.approx(5), pytest.approx(1), pytest.approx(-2)]
    assert [answer.fired for answer in given] == [False, True, True]
    assert found.value("D4").std == pytest.approx(math.sqrt(37 / 3))


def test_d4_does_not_fire_at_two_points_whatever_the_arithmetic_makes_of_them() -> None:
    def at(accuracy: float) -> Make:
        return lambda seed: {("test_acc", EPOCHS, None): accuracy}

    found = of_rule(audit(store(*of("dfa", at(0.57)), *of("frozen", at(0.55)))), "dfa")
    assert not any(known.answers["D4"].fired for known in found.runs)


def test_d4_names_the_epoch_from_which_the_blocks_fell_short() -> None:
    """0.3 from epoch 6, while the baseline rises to 0.35 and passes 0.28 at epoch 8; early epochs fell short too."""
    for answer in answers(replace("test_acc", 0.3, since=6), "D4"):
        assert (answer.fired, answer.since) == (True, 8)


def test_d4_is_not_asked_before_training() -> None:
    for answer in answers(healthy, "D4"):
        assert answer.at(0) is None


def test_without_a_frozen_baseline_of_this_recipe_and_seed_d4_is_undefined() -> None:
    alone = of_rule(audit(store(*of("dfa"))), "dfa")
    assert alone.runs[0].answers["D4"].reason == "there is no frozen baseline of this recipe"
    other = audit(store(*of("dfa"), *of("frozen", frozen, model__L=8)))
    assert of_rule(other, "dfa").tally("D4").reason == "there is no frozen baseline of this recipe"
    partly = of_rule(audit(store(*of("dfa"), *of("frozen", frozen, seeds=(42,)))), "dfa")
    assert [known.answers["D4"].fired for known in partly.runs] == [False, None, None]
    assert (partly.value("D4").n, partly.tally("D4").n) == (1, 3)
    assert partly.runs[1].answers["D4"].reason == "there is no frozen run of this recipe with seed 123"


def test_several_frozen_baselines_are_not_averaged() -> None:
    two = store(*of("dfa"), *of("frozen", frozen), *of("frozen", frozen, rule__penalty=0.1))
    found = [known for recipe in audit(two).recipes for known in recipe.rules if known.rule == "dfa"]
    assert "several frozen baselines" in (found[0].tally("D4").reason or "")


# What is missing


@pytest.mark.parametrize(
    ("metrics", "question", "says"),
    [
        (("growth",), "D1", "growth was not measured"),
        (("grad_norm",), "D2", "grad_norm was not measured at layer 4"),
        (("credit_cosine", "rho"), "D3", "credit_cosine and rho were not measured"),
        (("test_acc",), "D4", "test_acc was not measured"),
    ],
)
def test_each_question_says_what_is_missing(metrics: tuple[str, ...], question: str, says: str) -> None:
    make = lacking(*metrics)
    for answer in answers(make, question):
        assert answer.fired is None
        assert says in (answer.reason or "")
    found = audit(with_frozen("dfa", make))
    assert says in sentence(of_rule(found, "dfa"))
    assert f"{question} undefined" in verdict(of_rule(found, "dfa"))


# Recipes, rules and seeds


def test_runs_are_grouped_by_everything_but_rule_and_seed() -> None:
    stored = store(
        *of("bp"), *of("dfa"), *of("bp", model__out_ln=False), *of("bp", model__L=4, epochs=EPOCHS)
    )
    found = audit(store(*{known.id: (known, frame_of(stored, known.id)) for known in stored.runs}.values()))
    assert len(found.recipes) == 2
    assert [[known.rule for known in recipe.rules] for recipe in found.recipes] == [["bp", "dfa"], ["bp"]]
    assert "model.out_ln = false" in found.recipes[1].title


def frame_of(stored: Runs, id: str) -> pl.DataFrame:
    return stored.rows.filter(run=id).unique(maintain_order=True)


def test_variants_of_a_rule_are_told_apart_by_the_options_that_differ() -> None:
    found = audit(store(*of("dfa"), *of("dfa", rule__penalty=0.01)))
    assert [known.label for known in found.recipes[0].rules] == [
        "DFA (penalty = 0.0)",
        "DFA (penalty = 0.01)",
    ]


def test_the_table_puts_bp_first_and_frozen_last() -> None:
    found = audit(store(*of("frozen", frozen), *of("fa"), *of("bp"), *of("dfa")))
    assert [known.rule for known in found.recipes[0].rules] == ["bp", "dfa", "fa", "frozen"]


def test_runs_that_did_not_complete_are_left_out_named_and_counted() -> None:
    lost = run(config("dfa", 7), healthy(7), state="diverged")
    found = audit(store(*of("dfa"), lost))
    assert found.left_out == {lost[0].id: "it is diverged; loss or weights are not finite after epoch 10"}
    rule = of_rule(found, "dfa")
    assert rule.seeds == sorted(SEEDS)
    assert "1 more run did not complete" in sentence(rule)
    with pytest.raises(SondeError, match="no complete run"):
        audit(store(lost))


def test_there_is_no_vote_over_seeds_the_verdict_counts_them() -> None:
    def one_of_three(seed: int) -> dict[Key, Value]:
        return replace("growth", 200.0, since=4)(seed) if seed == 123 else healthy(seed)

    found = of_rule(audit(with_frozen("dfa", one_of_three)), "dfa")
    assert verdict(found) == "D1 (1 of 3)"
    assert "‖h‖ grows 200× per block from epoch 4 in 1 of 3 seeds" in sentence(found)


def test_thresholds_are_configuration() -> None:
    assert not any(answer.fired for answer in answers(replace("growth", 80.0), "D1", growth=100.0))
    assert all(answer.fired for answer in answers(healthy, "D2", gradient=0.5))
    assert all(answer.fired for answer in answers(healthy, "D4", points=99.0))
    with pytest.raises(SondeError, match="growth = nan"):
        Thresholds(growth=math.nan)


# Means over layers and seeds


def test_a_mean_over_layers_names_them_and_is_undefined_where_one_of_them_is() -> None:
    found = audit(with_frozen("dfa"))
    cosine = of_rule(found, "dfa").controlled("credit_cosine")
    assert cosine.layers == (1, 2, 3)
    assert "cosine, layers 1–3 (null, BP)" in columns(found.recipes[0])
    gap = audit(with_frozen("dfa", replace("credit_cosine", "a norm is zero", layers=(2,))))
    cosine = of_rule(gap, "dfa").controlled("credit_cosine")
    assert (cosine.value.n, cosine.value.reason) == (0, "layer 2: a norm is zero")
    assert (cosine.null.n, cosine.ceiling.mean) == (3, 1.0)


def test_layers_are_not_pooled_as_if_they_were_seeds() -> None:
    def layered(seed: int) -> dict[Key, Value]:
        return changed(
            healthy(seed), lambda m, e, l: l / 10 + seed / 1e4 if m == "credit_cosine" and l else None
        )

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
        st.sampled_from(NEEDED), st.integers(0, EPOCHS), st.one_of(st.none(), st.integers(0, DEPTH))
    )
    runs = []
    for rule in data.draw(st.lists(st.sampled_from(["bp", "dfa", "fa", "frozen"]), min_size=1, unique=True)):
        for seed in data.draw(st.lists(st.sampled_from(SEEDS), min_size=1, unique=True)):
            noise = data.draw(st.dictionaries(keys, values, max_size=12))
            dropped = data.draw(st.sets(st.sampled_from(NEEDED)))
            start = healthy(seed) if data.draw(st.booleans()) else {}
            kept = {key: value for key, value in start.items() if key[0] not in dropped}
            runs.append(run(config(rule, seed), kept | noise))
    found = audit(store(*runs))
    assert len(objects(found)) == sum(len(recipe.rules) for recipe in found.recipes)
    for recipe in found.recipes:
        assert all(len(line) == len(columns(recipe)) for line in lines(recipe))
        footnotes(recipe)
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
                    probes=Probing(names=("growth", "grad_norm"), costly=(), size=32),
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
    assert dfa.tally("D4").undefined == {}
    assert "were not measured" in (dfa.tally("D3").reason or "")
