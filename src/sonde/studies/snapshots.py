"""What happens to the residual stream and the BP gradient, epoch by epoch?"""

from collections.abc import Sequence

import polars as pl

from sonde.analysis.conclusions import MOST_NAMES, Conclusion, n_seeds
from sonde.config import RunConfig
from sonde.core.formatting import STREAM_GREW, accuracy, gradient_change, listed, number, stream_verdict
from sonde.metrics import TRAINED
from sonde.models import Model, ResidualMLP, StudentNet, VitMini
from sonde.rules import Backprop, DirectFeedback, FeedbackAlignment, Rule
from sonde.store.readings import Readings
from sonde.studies.recipes import (
    QUICK_SEEDS,
    SEEDS,
    classification,
    depth_answer,
    on_parity,
    teacher_student,
    which_train_depth,
)
from sonde.studies.study import (
    GRADIENT_CHANGES,
    EvidenceLine,
    Gathered,
    Study,
    StudyFinding,
    means,
    over_runs,
    own_n,
    stream_and_gradient,
)

_RULES: tuple[Rule, ...] = (Backprop(), FeedbackAlignment(), DirectFeedback())


def _configs(scale: str, seeds: Sequence[int]) -> list[RunConfig]:
    """residual_mlp with and without terminal LayerNorm, vit_mini and student_net under BP, FA and DFA."""
    full = scale == "full"
    d = 256 if full else 64
    images: tuple[Model, ...] = (
        ResidualMLP(d=d, L=4),
        ResidualMLP(d=d, L=4, out_ln=False),
        VitMini() if full else VitMini(d=32, L=4),
    )
    student = StudentNet() if full else StudentNet(d=32, L=4)
    return [
        run
        for seed in seeds
        for rule in _RULES
        for run in (
            *(classification(model, rule, scale=scale, seed=seed) for model in images),
            teacher_student(student, rule, scale=scale, seed=seed),
        )
    ]


def _findings(gathered: Gathered) -> list[StudyFinding]:
    """Which rules train depth; what became of stream and gradient; then what the terminal LayerNorm changes."""
    evidence = gathered.evidence
    kinds = evidence.runs.select("label", "rule").unique(maintain_order=True).sort("label")
    readings = Readings(evidence.rows)
    found = [_finding(evidence.runs.filter(label=label, rule=rule), readings) for label, rule in kinds.iter_rows()]
    return [*which_train_depth(gathered), *found, *_terminal_norm(found)]


def _measure(readings: Readings, run: EvidenceLine) -> dict[str, float]:
    stream = readings.value(run, "hidden_norm", epoch=run["epochs"], layer=run["depth"])
    return stream_and_gradient(readings, run) | {"stream": stream}


def _finding(runs: pl.DataFrame, readings: Readings) -> StudyFinding:
    what = runs.row(0, named=True)
    over = over_runs(runs, readings, _measure)
    stream, gradient = over["stream_change"]["mean"], over["gradient_change"]["mean"]
    n = {name: own_n(summary, runs.height) for name, summary in over.items()}
    return StudyFinding(
        sentence=(
            f"{what['label']}, {what['rule_label']}, on {what['task_label']}: {stream_verdict(stream)} over "
            f"{what['epochs']} epochs"
            f"{n['stream_change']}; {gradient_change(*(over[name]['mean'] for name in GRADIENT_CHANGES))}"
            f"{n['per_error_change'] or n['gradient_change']}."
        ),
        shown={
            "network": what["label"],
            "rule": what["rule_label"],
            "n": str(runs.height),
            TRAINED["test_acc"].label: accuracy(over["test_acc"]["mean"], over["test_acc"]["std"]) + n["test_acc"],
            "‖h_L‖": number(over["stream"]["mean"]) + n["stream"],
            "‖h_L‖ ÷ init": number(stream) + n["stream_change"],
            "‖g_L‖ ÷ init": number(gradient) + n["gradient_change"],
            "‖g_L‖/‖e‖ ÷ init": number(over["per_error_change"]["mean"]) + n["per_error_change"],
        },
        numbers={
            "network": what["label"],
            "task": what["task_label"],
            "out_ln": what["out_ln"],
            "model": what["model"],
            "rule": what["rule"],
            "rule_label": what["rule_label"],
            "n": runs.height,
            **means(over, runs.height),
        },
        runs=tuple(runs["run"]),
        seeds=tuple(runs["seed"]),
    )


def _terminal_norm(found: list[StudyFinding]) -> list[StudyFinding]:
    """The same network and rule with and without the terminal LayerNorm, side by side."""
    comparisons = []
    for with_ln in found:
        numbers = with_ln.numbers
        if numbers["out_ln"] is not True:
            continue
        for without in found:
            other = without.numbers
            if (other["model"], other["rule"], other["out_ln"]) == (numbers["model"], numbers["rule"], False):
                comparisons.append(
                    StudyFinding(
                        sentence=(
                            f"{numbers['rule_label']} on {numbers['task']}, with and without the terminal LayerNorm: "
                            f"‖h_L‖ changes ×{number(numbers['stream_change'])} and ×{number(other['stream_change'])}, "
                            f"‖g_L‖ ×{number(numbers['gradient_change'])} and ×{number(other['gradient_change'])}."
                        ),
                        shown={},
                        numbers={"with": numbers["stream_change"], "without": other["stream_change"]},
                        runs=(*with_ln.runs, *without.runs),
                        seeds=with_ln.seeds,
                    )
                )
    return comparisons


def _conclusion(findings: Sequence[StudyFinding]) -> Conclusion:
    """Whose stream grows; then which rules train depth."""
    own = [finding for finding in findings if finding.shown]
    grown = [finding for finding in own if finding.numbers["stream_change"] > STREAM_GREW]
    names = [f"{one.numbers['network']}, {one.numbers['rule_label']} ({one.numbers['task']})" for one in grown]
    answer = f"‖h_L‖ grows more than {STREAM_GREW:g}× in {len(grown)} of {len(own)} networks and rules"
    answer += f": {listed(names, MOST_NAMES)}." if grown else "."
    depth = next((finding.numbers for finding in findings if "shares" in finding.numbers), None)
    headings = ("network", "rule", "task", TRAINED["test_acc"].label, "‖h_L‖ ÷ init", "‖g_L‖/‖e‖ ÷ init")
    ranked = sorted(own, key=lambda finding: -finding.numbers["stream_change"])
    return Conclusion(
        answer=f"{answer} {depth_answer(depth)}" if depth else answer,
        columns={heading: "left" if place < 3 else "right" for place, heading in enumerate(headings)},
        rows=[
            [*map(finding.cell, headings[:1]), finding.numbers["rule_label"], *map(finding.cell, headings[2:])]
            for finding in ranked
        ],
        sure=f"{n_seeds(len(finding.seeds) for finding in own)} for each network and rule; the means are compared.",
    )


SNAPSHOTS_STUDY = Study(
    question="what happens to the residual stream and the BP gradient, epoch by epoch?",
    seeds={"quick": QUICK_SEEDS, "full": SEEDS},
    configs=_configs,
    findings=_findings,
    conclusion=_conclusion,
    beside=on_parity(_RULES),
)
