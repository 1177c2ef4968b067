"""Three studies of rules on residual networks, and what becomes of stream and gradient under each.

`audit`: which rules train depth, and are their diagnostics reliable?
`cifar10`: how do learned-credit rules compare on a deep network?
`snapshots`: what happens to the residual stream and the BP gradient, epoch by epoch?
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from sonde.analysis.audit import audit
from sonde.analysis.audit_text import audit_columns, audit_rows, sentence, short_verdict, verdict
from sonde.analysis.conclusions import MOST_NAMES, Conclusion, n_seeds
from sonde.analysis.evidence import Evidence
from sonde.config import RunConfig
from sonde.core.formatting import HARDLY, STREAM_GREW, Thresholds, accuracy, listed, number, signed
from sonde.metrics import TRAINED
from sonde.models import Model, ResidualMLP, StudentNet, VitMini
from sonde.rules import Backprop, CreditBridge, DirectFeedback, FeedbackAlignment, Frozen, Rule, StateBridge
from sonde.store.readings import Readings
from sonde.studies.recipes import (
    QUICK_SEEDS,
    SEEDS,
    classification,
    depth_answer,
    on_parity,
    rules_conclusion,
    teacher_student,
    which_train_depth,
)
from sonde.studies.study import (
    EvidenceLine,
    Gathered,
    Study,
    StudyFinding,
    means,
    over_runs,
    own_n,
    stream_and_gradient,
    stream_cells,
    stream_words,
)


def _study(
    question: str,
    rules: Sequence[Rule],
    findings: Callable[[Gathered], list[StudyFinding]],
    conclusion: Callable[[Sequence[StudyFinding]], Conclusion],
    *,
    L: int,
    full_width: int,
) -> Study:
    """residual_mlp with L blocks under each of the rules; `full_width` at full scale, 64 wide at quick."""

    def configs(scale: str, seeds: Sequence[int]) -> list[RunConfig]:
        model = ResidualMLP(d=full_width if scale == "full" else 64, L=L)
        return [classification(model, rule, scale=scale, seed=seed) for seed in seeds for rule in rules]

    return Study(
        question=question,
        seeds={"quick": QUICK_SEEDS, "full": SEEDS},
        configs=configs,
        findings=findings,
        conclusion=conclusion,
        beside=on_parity(rules),
    )


def accuracies(evidence: Evidence) -> list[StudyFinding]:
    """A finding for each rule, the most accurate first, those without an accuracy last."""
    rules, readings = evidence.runs["rule"].unique(maintain_order=True), evidence.readings()
    found = [_accuracy_finding(evidence.runs.filter(rule=rule), readings) for rule in rules]
    return sorted(found, key=lambda finding: (not _has_accuracy(finding), -finding.numbers["test_acc"]))


def _has_accuracy(finding: StudyFinding) -> bool:
    """Whether it has an accuracy to be ranked by."""
    return math.isfinite(finding.numbers["test_acc"])


def _measure(readings: Readings, run: EvidenceLine) -> dict[str, float]:
    error = readings.value(run, "state_pred_error", epoch=run["epochs"])
    return stream_and_gradient(readings, run) | {"state_pred_error": error}


def _accuracy_finding(runs: pl.DataFrame, readings: Readings) -> StudyFinding:
    what = runs.row(0, named=True)
    over = over_runs(runs, readings, _measure)
    n = {name: own_n(summary, runs.height) for name, summary in over.items()}
    reached = accuracy(over["test_acc"]["mean"], over["test_acc"]["std"]) + n["test_acc"]
    predicted = number(over["state_pred_error"]["mean"]) + n["state_pred_error"]
    return StudyFinding(
        sentence=(
            f"{what['rule_label']} on {what['task_label']}: test accuracy {reached} after {what['epochs']} epochs; "
            f"{stream_words(over, n)}."
        ),
        shown={
            "rule": what["rule_label"],
            "n": str(runs.height),
            TRAINED["test_acc"].label: reached,
            **stream_cells(over, n),
            "prediction error": predicted if what["rule"] == "state_bridge" else "–",
        },
        numbers={
            "rule": what["rule"],
            "rule_label": what["rule_label"],
            "task": what["task_label"],
            "n": runs.height,
            **means(over, runs.height),
        },
        runs=tuple(runs["run"]),
        seeds=tuple(runs["seed"]),
    )


def prediction_against_rank(found: list[StudyFinding]) -> list[StudyFinding]:
    """State Bridge's prediction error beside its rank among the rules by test accuracy, where it has both."""
    ranked = [finding for finding in found if _has_accuracy(finding)]
    for rank, finding in enumerate(ranked, start=1):
        error = finding.numbers["state_pred_error"]
        if finding.numbers["rule"] == "state_bridge" and len(ranked) > 1 and math.isfinite(error):
            sentence = (
                f"State Bridge on {finding.numbers['task']} predicts the final state with a relative error of "
                f"{number(error)} and is number {rank} of {len(ranked)} rules by test accuracy."
            )
            return [replace(finding, sentence=sentence, shown={})]
    return []


def _cifar10_findings(gathered: Gathered) -> list[StudyFinding]:
    """Which rules train depth; accuracy and stream of each; whether a better prediction means a better network."""
    found = accuracies(gathered.evidence)
    return [*which_train_depth(gathered), *found, *prediction_against_rank(found)]


def _audit_findings(gathered: Gathered) -> list[StudyFinding]:
    """Which rules train depth, the audit's verdict on each, and whether a better prediction means a better network."""
    found = which_train_depth(gathered)
    for recipe in audit(gathered.stored, cache=gathered.audits).recipes:
        headings = list(audit_columns(recipe))
        for rule, cells in zip(recipe.rules, audit_rows(recipe), strict=True):
            found.append(
                StudyFinding(
                    sentence=sentence(rule),
                    shown=dict(zip(headings, cells, strict=True)),
                    numbers={
                        "rule": rule.rule,
                        "rule_label": rule.label,
                        "task": rule.task,
                        "n": len(rule.seeds),
                        "verdict": verdict(rule),
                        "finding": short_verdict(rule),
                        "test_acc": rule.scalar("test_acc").mean,
                        "points_over_frozen": rule.margin.points.mean,
                        "outcome": rule.margin.outcome,
                    },
                    runs=tuple(rule.ended),
                    seeds=tuple(rule.seeds),
                )
            )
    return [*found, *prediction_against_rank(accuracies(gathered.evidence))]


def _audit_conclusion(findings: Sequence[StudyFinding]) -> Conclusion:
    """Which rules train depth, and what the audit says of each."""
    own = {finding.numbers["rule"]: finding.numbers for finding in findings if finding.shown}
    task = next(iter(own.values()))["task"]
    known = {"test acc.": f"{task} acc.", "points over frozen": "over frozen", "finding": f"audit on {task}"}
    depth = any("shares" in finding.numbers for finding in findings)
    if depth:
        del known["points over frozen"]
    found = rules_conclusion(findings, known)
    bp = own.get("bp", {}).get("points_over_frozen", math.nan)
    gain = f"only {number(bp)} points" if bp > 0 else "nothing"
    said = f" On {task} BP gains {gain}." if bp < HARDLY else ""
    if depth:
        return replace(found, answer=found.answer + said)
    decides = f" The {100 * Thresholds().confidence:g} % interval decides, corrected for the number of rules."
    sure = found.sure + decides * any(len(finding.seeds) > 1 for finding in findings if finding.shown)
    return replace(found, answer=_helped(task, list(own.values())) + said, sure=sure)


def _helped(task: str, own: Sequence[Mapping[str, Any]]) -> str:
    """Whose blocks are better or worse than frozen ones."""
    parts = []
    for outcome, words in (("helps", "better"), ("hurts", "worse"), ("undecided", "undecided")):
        of = [one for one in own if one["outcome"] == outcome]
        if labels := [f"{one['rule_label']} ({signed(one['points_over_frozen'])})" for one in of]:
            parts.append(f"{words}: {listed(labels, MOST_NAMES)}")
    return f"Accuracy on {task} in points over frozen blocks, {'; '.join(parts) or 'undefined for every rule'}."


def _cifar10_conclusion(findings: Sequence[StudyFinding]) -> Conclusion:
    """Which rules train depth, and how accurate each is."""
    ranked = [finding for finding in findings if finding.shown]
    task = ranked[0].numbers["task"]
    cells = {TRAINED["test_acc"].label: f"{task} acc.", "‖h_L‖ ÷ init": "‖h_L‖ ÷ init"}
    found = rules_conclusion(findings, cells)
    best, last = ranked[0], ranked[-1]
    order = (
        f"On {task}, {best.numbers['rule_label']} is the most accurate ({best.cell(TRAINED['test_acc'].label)}) and "
        f"{last.numbers['rule_label']} the least ({last.cell(TRAINED['test_acc'].label)})."
    )
    depth = any("shares" in finding.numbers for finding in findings)
    lacking = "" if depth else " Runs with frozen blocks would show whether the trained blocks contribute."
    return replace(found, answer=f"{found.answer} {order}".strip(), sure=found.sure + lacking)


AUDIT_STUDY = _study(
    "which rules train depth, and are their diagnostics reliable?",
    (Backprop(), FeedbackAlignment(), DirectFeedback(), StateBridge(), CreditBridge(), Frozen()),
    _audit_findings,
    _audit_conclusion,
    L=4,
    full_width=256,
)

CIFAR10_STUDY = _study(
    "how do learned-credit rules compare on a deep network?",
    (Backprop(), DirectFeedback(), StateBridge(), CreditBridge()),
    _cifar10_findings,
    _cifar10_conclusion,
    L=12,
    full_width=512,
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
    readings = evidence.readings()
    found = [_finding(evidence.runs.filter(label=label, rule=rule), readings) for label, rule in kinds.iter_rows()]
    return [*which_train_depth(gathered), *found, *_terminal_norm(found)]


def _measure_stream(readings: Readings, run: EvidenceLine) -> dict[str, float]:
    stream = readings.value(run, "hidden_norm", epoch=run["epochs"], layer=run["depth"])
    return stream_and_gradient(readings, run) | {"stream": stream}


def _finding(runs: pl.DataFrame, readings: Readings) -> StudyFinding:
    what = runs.row(0, named=True)
    over = over_runs(runs, readings, _measure_stream)
    n = {name: own_n(summary, runs.height) for name, summary in over.items()}
    when = f" over {what['epochs']} epochs"
    return StudyFinding(
        sentence=(f"{what['label']}, {what['rule_label']}, on {what['task_label']}: {stream_words(over, n, when)}."),
        shown={
            "network": what["label"],
            "rule": what["rule_label"],
            "n": str(runs.height),
            TRAINED["test_acc"].label: accuracy(over["test_acc"]["mean"], over["test_acc"]["std"]) + n["test_acc"],
            "‖h_L‖": number(over["stream"]["mean"]) + n["stream"],
            **stream_cells(over, n),
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
    without = {(one.numbers["model"], one.numbers["rule"]): one for one in found if one.numbers["out_ln"] is False}
    comparisons = []
    for one in found:
        numbers, twin = one.numbers, without.get((one.numbers["model"], one.numbers["rule"]))
        if numbers["out_ln"] is True and twin is not None:
            stream, gradient = (
                f"×{number(numbers[name])} and ×{number(twin.numbers[name])}"
                for name in ("stream_change", "gradient_change")
            )
            sentence = (
                f"{numbers['rule_label']} on {numbers['task']}, with and without the terminal LayerNorm: "
                f"‖h_L‖ changes {stream}, ‖g_L‖ {gradient}."
            )
            changes = {"with": numbers["stream_change"], "without": twin.numbers["stream_change"]}
            runs = (*one.runs, *twin.runs)
            comparisons.append(StudyFinding(sentence=sentence, shown={}, numbers=changes, runs=runs, seeds=one.seeds))
    return comparisons


def _conclusion(findings: Sequence[StudyFinding]) -> Conclusion:
    """Whose stream grows; then which rules train depth."""
    own = [finding for finding in findings if finding.shown]
    grown = [finding for finding in own if finding.numbers["stream_change"] > STREAM_GREW]
    names = [f"{one.numbers['rule_label']} with {one.numbers['network']} on {one.numbers['task']}" for one in grown]
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
