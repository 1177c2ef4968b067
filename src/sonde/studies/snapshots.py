"""What happens to the residual stream and the BP gradient, epoch by epoch?"""

from collections.abc import Sequence

import polars as pl

from sonde.analysis.conclusions import MOST_NAMES, Conclusion, n_seeds
from sonde.config import RunConfig
from sonde.core.formatting import STREAM_GREW, accuracy, listed, number
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


def _measure(readings: Readings, run: EvidenceLine) -> dict[str, float]:
    stream = readings.value(run, "hidden_norm", epoch=run["epochs"], layer=run["depth"])
    return stream_and_gradient(readings, run) | {"stream": stream}


def _finding(runs: pl.DataFrame, readings: Readings) -> StudyFinding:
    what = runs.row(0, named=True)
    over = over_runs(runs, readings, _measure)
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
