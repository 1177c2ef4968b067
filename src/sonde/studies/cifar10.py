"""How do learned-credit rules compare on a deep network?"""

import math
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from sonde.analysis.evidence import Evidence
from sonde.config import RunConfig
from sonde.core.formatting import accuracy, gradient_change, number, stream_verdict
from sonde.metrics import TRAINED
from sonde.models import ResidualMLP
from sonde.rules import Backprop, CreditBridge, DirectFeedback, Rule, StateBridge
from sonde.store.readings import Readings
from sonde.studies.recipes import QUICK_SEEDS, SEEDS, classification, on_parity, which_train_depth
from sonde.studies.study import (
    TOLD,
    Gathered,
    Line,
    Study,
    StudyFinding,
    means,
    over_runs,
    own_n,
    stream_and_gradient,
)

_RULES: tuple[Rule, ...] = (Backprop(), DirectFeedback(), StateBridge(), CreditBridge())


def _configs(scale: str, seeds: Sequence[int]) -> list[RunConfig]:
    """residual_mlp, twelve blocks, under BP, DFA and the two bridges."""
    model = ResidualMLP(d=512 if scale == "full" else 64, L=12)
    return [classification(model, rule, scale=scale, seed=seed) for seed in seeds for rule in _RULES]


def _findings(gathered: Gathered) -> list[StudyFinding]:
    """Which rules train depth; accuracy and stream of each; whether a better prediction means a better network."""
    evidence = gathered.evidence
    found = accuracies(evidence)
    return [*which_train_depth(gathered), *found, *prediction_against_rank(found)]


def accuracies(evidence: Evidence) -> list[StudyFinding]:
    """A finding for each rule, the most accurate first, those without an accuracy last."""
    rules, readings = evidence.runs["rule"].unique(maintain_order=True), Readings(evidence.rows)
    found = [accuracy_finding(evidence.runs.filter(rule=rule), readings) for rule in rules]
    return sorted(found, key=lambda finding: (not _placed(finding), -finding.numbers["test_acc"]))


def _placed(finding: StudyFinding) -> bool:
    """Whether it has an accuracy to be ranked by."""
    return math.isfinite(finding.numbers["test_acc"])


def _measure(readings: Readings, run: Line) -> dict[str, float]:
    error = readings.value(run, "state_pred_error", epoch=run["epochs"])
    return stream_and_gradient(readings, run) | {"state_pred_error": error}


def accuracy_finding(runs: pl.DataFrame, readings: Readings) -> StudyFinding:
    what = runs.row(0, named=True)
    over = over_runs(runs, readings, _measure)
    n = {name: own_n(summary, runs.height) for name, summary in over.items()}
    reached = accuracy(over["test_acc"]["mean"], over["test_acc"]["std"]) + n["test_acc"]
    predicted = number(over["state_pred_error"]["mean"]) + n["state_pred_error"]
    return StudyFinding(
        sentence=(
            f"{what['rule_label']}: test accuracy {reached} after {what['epochs']} epochs; "
            f"{stream_verdict(over['stream_change']['mean'])}{n['stream_change']}; "
            f"{gradient_change(*(over[name]['mean'] for name in TOLD))}"
            f"{n['per_error_change'] or n['gradient_change']}."
        ),
        shown={
            "rule": what["rule_label"],
            "n": str(runs.height),
            TRAINED["test_acc"].label: reached,
            "‖h_L‖ ÷ init": number(over["stream_change"]["mean"]) + n["stream_change"],
            "‖g_L‖ ÷ init": number(over["gradient_change"]["mean"]) + n["gradient_change"],
            "‖g_L‖/‖e‖ ÷ init": number(over["per_error_change"]["mean"]) + n["per_error_change"],
            "prediction error": predicted if what["rule"] == "state_bridge" else "–",
        },
        numbers={
            "rule": what["rule"],
            "rule_label": what["rule_label"],
            "n": runs.height,
            **means(over, runs.height),
        },
        runs=tuple(runs["run"]),
        seeds=tuple(runs["seed"]),
    )


def prediction_against_rank(found: list[StudyFinding]) -> list[StudyFinding]:
    """State Bridge's prediction error beside its rank among the rules by test accuracy, where it has both."""
    ranked = [finding for finding in found if _placed(finding)]
    for rank, finding in enumerate(ranked, start=1):
        error = finding.numbers["state_pred_error"]
        if finding.numbers["rule"] == "state_bridge" and len(ranked) > 1 and math.isfinite(error):
            sentence = (
                f"State Bridge predicts the final state to a relative error of {number(error)} and is "
                f"number {rank} of {len(ranked)} rules by test accuracy."
            )
            return [replace(finding, sentence=sentence, shown={})]
    return []


CIFAR10_STUDY = Study(
    question="how do learned-credit rules compare on a deep network?",
    seeds={"quick": QUICK_SEEDS, "full": SEEDS},
    configs=_configs,
    findings=_findings,
    beside=on_parity(_RULES),
)
