"""What a study finds: every mean with the n it stands on, and judged by the task that was learned."""

import math

import polars as pl
import pytest

from evidence import residual_evidence, rules_evidence, snapshot_evidence, undefined_where
from sonde.analysis.audit import AuditCache
from sonde.analysis.evidence import Evidence
from sonde.cli.train import _source
from sonde.metrics.rows import empty
from sonde.store.run import Runs
from sonde.studies import STUDIES
from sonde.studies.audit import accuracies, prediction_against_rank
from sonde.studies.study import Gathered, StudyFinding

NOTHING = Runs(empty(), [])
PER_ERROR = "‖g_L‖/‖e‖ ÷ init"


def found(study: str, evidence: Evidence) -> list[StudyFinding]:
    return STUDIES[study].findings(Gathered(NOTHING, evidence, {}, AuditCache(NOTHING), NOTHING))


def of_run(*runs: str) -> pl.Expr:
    return pl.col("run").is_in(runs)


def on_digits() -> Evidence:
    """As if the networks had learned classes: cross entropy from 2.3 to 0.4."""
    one = residual_evidence()
    losses = pl.when(metric="batch_loss").then(2.3 - 1.9 * (pl.col("step") - 1) / 199).otherwise("value")
    runs = one.runs.with_columns(task=pl.lit("digits"), task_label=pl.lit("digits"))
    return Evidence(one.rows.with_columns(value=losses), runs, one.source)


def test_another_task_than_the_identity_is_not_judged_against_predicting_zero() -> None:
    for finding in found("residual", on_digits()):
        assert f"learned: loss fell {100 * (2.3 - 0.4 - 0.0955 * 0.95) / 2.3:.1f}" in finding.sentence
        assert "predicting zero" not in finding.sentence
        assert finding.numbers["verdict"] == "learned"
        assert math.isnan(finding.numbers["growth_per_layer_predicted"])
        assert finding.shown["predicted"] == "undefined"
    identity = found("residual", residual_evidence())
    assert any("that of predicting zero" in finding.sentence for finding in identity)
    assert all(finding.numbers["growth_per_layer_predicted"] > 0 for finding in identity)


def with_gradients_per_error(evidence: Evidence) -> Evidence:
    """Beside every norm of a gradient the same per output error."""
    per_error = evidence.rows.filter(metric="grad_norm").with_columns(metric=pl.lit("grad_per_error"))
    return Evidence(pl.concat([evidence.rows, per_error]), evidence.runs, evidence.source)


def test_a_mean_over_fewer_seeds_than_its_row_says_how_many() -> None:
    evidence = with_gradients_per_error(snapshot_evidence(networks=("ln",), epochs=5))
    gone = of_run("ln-dfa-42", "ln-dfa-123") & (pl.col("metric") == "grad_per_error")
    bp, dfa = (
        next(one for one in found("snapshots", undefined_where(evidence, gone)) if one.numbers["rule"] == rule)
        for rule in ("bp", "dfa")
    )
    assert (dfa.shown["n"], dfa.numbers["n"], dfa.numbers["per_error_change_n"]) == ("3", 3, 1)
    assert dfa.shown[PER_ERROR].endswith(" (n = 1)")
    assert dfa.sentence.endswith(" (n = 1).")
    assert "(n = " not in "".join([bp.sentence, *bp.shown.values(), dfa.shown["‖g_L‖ ÷ init"]])
    assert "per_error_change_n" not in bp.numbers


def test_an_accuracy_over_fewer_seeds_says_how_many() -> None:
    gone = of_run("dfa-42") & (pl.col("metric") == "test_acc")
    for finding in accuracies(undefined_where(rules_evidence(epochs=5), gone)):
        fewer = finding.numbers["rule"] == "dfa"
        assert finding.shown["test accuracy"].endswith(" % (n = 2)") is fewer
        assert ("(n = 2) after 5 epochs" in finding.sentence) is fewer
        assert finding.shown["n"] == "3"


def test_a_residual_network_whose_last_loss_is_undefined_in_one_seed_keeps_its_n_elsewhere() -> None:
    gone = of_run("res_mlp-scaled-43") & (pl.col("metric") == "batch_loss") & (pl.col("step") == 200)
    findings = found("residual", undefined_where(residual_evidence(seeds=(42, 43, 44)), gone))
    (network,) = (one for one in findings if "res_mlp-scaled-43" in one.runs)
    assert network.shown["n"] == "3"
    assert network.shown["final loss"].endswith(" (n = 2)")
    assert network.shown["above lowest, fell by"].endswith(" (n = 2)")
    assert "(n = " not in network.shown["first loss"] + network.shown["gradient, least … most"]


@pytest.mark.parametrize("layer", [1, 20])
def test_least_and_most_of_the_gradients_are_of_every_layer_or_undefined(layer: int) -> None:
    gone = (pl.col("metric") == "preact_grad_norm") & (pl.col("layer") == layer)
    for finding in found("residual", undefined_where(residual_evidence(), gone)):
        assert finding.shown["gradient, least … most"] == "undefined … undefined"


def test_a_rule_without_an_accuracy_has_no_rank_and_comes_last() -> None:
    gone = of_run("bp-42") & (pl.col("metric") == "test_acc")
    ranked = accuracies(undefined_where(rules_evidence(epochs=5, seeds=(42,)), gone))
    assert [one.numbers["rule"] for one in ranked] == ["dfa", "credit_bridge", "state_bridge", "bp"]
    (sentence,) = (one.sentence for one in prediction_against_rank(ranked))
    assert sentence.endswith("is number 3 of 3 rules by test accuracy.")


@pytest.mark.parametrize("metric", ["test_acc", "state_pred_error"])
def test_a_state_bridge_without_accuracy_or_prediction_is_not_ranked_by_it(metric: str) -> None:
    evidence = rules_evidence(epochs=5, seeds=(42,))
    assert prediction_against_rank(accuracies(evidence))
    gone = of_run("state_bridge-42") & (pl.col("metric") == metric)
    assert not prediction_against_rank(accuracies(undefined_where(evidence, gone)))


def test_n_is_the_number_of_seeds_and_further_runs_are_counted_as_runs() -> None:
    one = StudyFinding(sentence="", shown={}, numbers={}, runs=("a", "b"), seeds=(42, 123))
    assert _source(one) == "n = 2 (seeds 42, 123); a, b"
    rules = StudyFinding(sentence="", shown={}, numbers={}, runs=("a", "b", "c", "d"), seeds=(42, 123))
    assert _source(rules) == "n = 2 (seeds 42, 123), 4 runs; a, b, c, d"
