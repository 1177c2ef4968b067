"""How do learned-credit rules compare on a deep network?"""

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from sonde.config import RunConfig
from sonde.models import ResidualMLP
from sonde.rules import Backprop, CreditBridge, DirectFeedback, Rule, StateBridge
from sonde.runs.evidence import Evidence
from sonde.runs.readings import Readings, RunReadings
from sonde.studies.depth import on_parity, which_train_depth
from sonde.studies.recipes import QUICK_SEEDS, SEEDS, classification
from sonde.studies.study import Gathered, Study, StudyFinding, over_runs, stream_and_gradient
from sonde.verdicts import accuracy, collapse_verdict, number, stream_verdict

RULES: tuple[Rule, ...] = (Backprop(), DirectFeedback(), StateBridge(), CreditBridge())


def configs(scale: str, seeds: Sequence[int]) -> list[RunConfig]:
    """residual_mlp, twelve blocks, under BP, DFA and the two bridges."""
    model = ResidualMLP(d=512 if scale == "full" else 64, L=12)
    return [classification(model, rule, scale=scale, seed=seed) for seed in seeds for rule in RULES]


def findings(gathered: Gathered) -> list[StudyFinding]:
    """Which rules train depth; accuracy and stream of each; whether a better prediction means a better network."""
    evidence = gathered.evidence
    found = accuracies(evidence)
    return [*which_train_depth(gathered), *found, *prediction_against_rank(found)]


def accuracies(evidence: Evidence) -> list[StudyFinding]:
    """A finding for each rule, the most accurate first."""
    rules, readings = evidence.runs["rule"].unique(maintain_order=True), Readings(evidence.rows)
    found = [accuracy_finding(evidence.runs.filter(rule=rule), readings) for rule in rules]
    return sorted(found, key=lambda finding: -float(finding.numbers["test_acc"] or 0))


def measure(rows: RunReadings) -> dict[str, float]:
    error = rows.value("state_pred_error", epoch=rows.run["epochs"])
    return stream_and_gradient(rows) | {"state_pred_error": error}


def accuracy_finding(runs: pl.DataFrame, readings: Readings) -> StudyFinding:
    what = runs.row(0, named=True)
    over = over_runs(runs, readings, measure)
    reached = accuracy(over["test_acc"]["mean"], over["test_acc"]["std"])
    return StudyFinding(
        sentence=(
            f"{what['rule_label']}: test accuracy {reached} after {what['epochs']} epochs; "
            f"{stream_verdict(over['stream_change']['mean'])}; "
            f"{collapse_verdict(over['gradient_change']['mean'], over['per_error_change']['mean'])}."
        ),
        shown={
            "rule": what["rule_label"],
            "n": str(runs.height),
            "test accuracy": reached,
            "‖h_L‖ ÷ init": number(over["stream_change"]["mean"]),
            "‖g_L‖ ÷ init": number(over["gradient_change"]["mean"]),
            "‖g_L‖/‖e‖ ÷ init": number(over["per_error_change"]["mean"]),
            "prediction error": number(over["state_pred_error"]["mean"])
            if what["rule"] == "state_bridge"
            else "–",
        },
        numbers={
            "rule": what["rule"],
            "rule_label": what["rule_label"],
            "n": runs.height,
            **{name: summary["mean"] for name, summary in over.items()},
        },
        runs=tuple(runs["run"]),
        seeds=tuple(runs["seed"]),
    )


def prediction_against_rank(ranked: list[StudyFinding]) -> list[StudyFinding]:
    """State Bridge's prediction error beside its rank among the rules by test accuracy."""
    for rank, finding in enumerate(ranked, start=1):
        if finding.numbers["rule"] == "state_bridge" and len(ranked) > 1:
            error = finding.numbers["state_pred_error"]
            sentence = (
                f"State Bridge predicts the final state to a relative error of {number(float(error or 0))} and is "
                f"number {rank} of {len(ranked)} rules by test accuracy."
            )
            return [replace(finding, sentence=sentence, shown={})]
    return []


STUDY = Study(
    question="how do learned-credit rules compare on a deep network?",
    seeds={"quick": QUICK_SEEDS, "full": SEEDS},
    configs=configs,
    findings=findings,
    beside=on_parity(RULES),
)
