"""What studies share: recipes, so that equal runs are one run, and the question which rules train depth."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import polars as pl

from sonde.analysis.conclusions import MOST_NAMES, Conclusion, n_seeds, sureness
from sonde.analysis.recovery import Accuracy, error_by_test_set, share_of_margin
from sonde.config import Optimiser, Probing, RunConfig
from sonde.core.formatting import accuracy, listed, percent, said_share
from sonde.core.seed_statistics import Interval, paired, ratio_interval, summarise
from sonde.metrics.rows import Reading
from sonde.models import Model, ResidualMLP
from sonde.rules import Backprop, Frozen, Rule
from sonde.store.readings import Readings
from sonde.studies.study import Gathered, StudyFinding
from sonde.tasks import Cifar10, Digits, Parity, Task, Teacher

SEEDS = (42, 123, 456)
QUICK_SEEDS = (42, 123)


def classification(model: Model, rule: Rule, *, scale: str, seed: int, epochs: int | None = None) -> RunConfig:
    """AdamW 1e-3, weight decay 0.01, cosine: CIFAR-10 with batch 128 for 100 epochs; quick: digits, 32, 20."""
    full = scale == "full"
    task: Task = Cifar10() if full else Digits()
    return _run(model, rule, task, scale=scale, seed=seed, epochs=epochs or (100 if full else 20))


def depth_matters(
    model: Model,
    rule: Rule,
    *,
    scale: str,
    seed: int,
    probes: Probing | None = None,
    epochs: int | None = None,
) -> RunConfig:
    """Where blocks must learn: CIFAR-10 for 12 epochs; quick: parity with batch 128 for 20."""
    full = scale == "full"
    task: Task = Cifar10() if full else Parity()
    config = _run(model, rule, task, scale=scale, seed=seed, epochs=epochs or (12 if full else 20))
    return replace(config, batch_size=128, probes=probes or config.probes)


def teacher_student(model: Model, rule: Rule, *, scale: str, seed: int) -> RunConfig:
    """Labels from a random teacher: 10,000 samples for 80 epochs; quick: 1,500 for 20."""
    full = scale == "full"
    task = Teacher() if full else Teacher(inputs=32, d=32, samples=1500, test_samples=400)
    return _run(model, rule, task, scale=scale, seed=seed, epochs=80 if full else 20)


def _run(model: Model, rule: Rule, task: Task, *, scale: str, seed: int, epochs: int) -> RunConfig:
    full = scale == "full"
    return RunConfig(
        model=model,
        rule=rule,
        task=task,
        optimiser=Optimiser(name="adamw", lr=1e-3, weight_decay=0.01, schedule="cosine"),
        probes=Probing(size=1024 if full else 128),
        batch_size=128 if full else 32,
        epochs=epochs,
        seed=seed,
        scale="full" if full else "quick",
    )


# ── which rules train depth, asked on a task where blocks must learn ────────────────────────────────
ENOUGH_OF_MARGIN = 0.9  # of backprop's margin over frozen blocks
DEPTH_PROBES = Probing(
    names=("loss", "hidden_norm", "growth", "grad_norm", "credit_norm", "credit_cosine", "weight_alignment"),
    schedule="every_k",
    costly=(),
)


def on_parity(rules: Sequence[Rule]) -> Callable[[str, Sequence[int]], list[RunConfig]]:
    """At quick scale residual_mlp on parity under these rules, backprop and frozen; CIFAR-10 itself asks for depth."""
    asked = [*rules, *(rule for rule in (Backprop(), Frozen()) if rule not in rules)]
    model = ResidualMLP(d=64, L=4)

    def configs(scale: str, seeds: Sequence[int]) -> list[RunConfig]:
        if scale == "full":
            return []
        return [
            depth_matters(model, rule, scale=scale, seed=seed, probes=DEPTH_PROBES) for seed in seeds for rule in asked
        ]

    return configs


def percent_of(share: float) -> str:
    """`90 %`."""
    return f"{100 * share:.0f} %"


class Share(NamedTuple):
    """A rule's share of what BP gains over frozen blocks: the mean of the differences by seed, and how sure it is."""

    value: float  # NaN where there is no gain
    error: float  # of one seed: the standard error from the test samples alone; else NaN
    interval: Interval
    n: int

    @property
    def decided(self) -> bool:
        """Whether the interval lies on one side of `ENOUGH_OF_MARGIN`."""
        return self.interval.low >= ENOUGH_OF_MARGIN or self.interval.high < ENOUGH_OF_MARGIN

    @property
    def undecided(self) -> bool:
        """Whether there is an interval, and it includes `ENOUGH_OF_MARGIN`."""
        return self.interval.low < ENOUGH_OF_MARGIN <= self.interval.high


def share_of_rule(network: pl.DataFrame, runs: pl.DataFrame, readings: Readings) -> Share:
    """The share of a rule, whose runs are `runs`, among the runs of one network."""
    taken = readings.at("test_acc", epoch=runs["epochs"][0])

    def by_seed(some: pl.DataFrame) -> dict[int, Reading]:
        run_and_seed = zip(some["run"], some["seed"], strict=True)
        return {seed: taken[run] for run, seed in run_and_seed if run in taken and taken[run].defined}

    sides = [by_seed(some) for some in (runs, network.filter(rule="bp"), network.filter(rule="frozen"))]
    ours, best, least = ({seed: one.value for seed, one in side.items()} for side in sides)
    gained, margin = (paired(side, least).differences for side in (ours, best))
    around = share_of_margin(gained, margin)
    error = math.nan
    if len(around) == 1:
        (seed,) = gained.keys() & margin.keys()
        error = error_by_test_set(*(Accuracy(value=side[seed].value, samples=side[seed].samples) for side in sides))
    return Share(summarise(around).mean, error, ratio_interval(gained, margin), len(around))


def named_shares(shares: Mapping[str, Share]) -> str:
    """Label → share and its error, in words."""
    return ", ".join(f"{label} {said_share(one.value, one.error)}" for label, one in shares.items()) or "none"


def error_note(shares: Iterable[Share]) -> str:
    """What ± is, where one seed stands for a share, and how many of these shares it leaves above the limit."""
    known = [one for one in shares if not math.isnan(one.error)]
    if not known:
        return ""
    sure = sum(one.value - 2 * one.error >= ENOUGH_OF_MARGIN for one in known)
    return (
        " n = 1 seed: ± is the standard error from the test set alone, and seeds add to it."
        f" {sure} of these are above {percent_of(ENOUGH_OF_MARGIN)} by two standard errors."
    )


def which_train_depth(gathered: Gathered) -> list[StudyFinding]:
    """Of the runs beside the study: what each rule recovers of what BP gains over frozen blocks."""
    beside = gathered.evidence.beside if gathered.beside.runs else None
    if beside is None:
        return []
    runs, readings = beside.runs, beside.readings()
    last = int(runs["epochs"][0])
    taken = readings.at("test_acc", epoch=last)

    def reached(rule: str) -> float:
        values = [taken[run].value for run in runs.filter(rule=rule)["run"] if run in taken]
        return summarise(values).mean

    others = [rule for rule in runs["rule"].unique(maintain_order=True) if rule not in ("bp", "frozen")]
    shares = {rule: share_of_rule(runs, runs.filter(rule=rule), readings) for rule in others}
    shares = {rule: share for rule, share in shares.items() if share.n}
    if not shares:
        return []
    labels = dict(runs.select("rule", "rule_label").iter_rows())

    def named(chosen: Sequence[str]) -> str:
        return named_shares({labels[rule]: shares[rule] for rule in chosen})

    ranked = sorted(shares, key=lambda rule: -shares[rule].value)
    enough = [rule for rule in ranked if shares[rule].value >= ENOUGH_OF_MARGIN]
    rest = [rule for rule in ranked if rule not in enough]
    best, least = reached("bp"), reached("frozen")
    task = runs["task_label"][0]
    sentence = (
        f"Which rules train depth on {task}? {runs['label'][0]} reaches {percent(100 * least)} with frozen blocks "
        f"and {percent(100 * best)} with BP after {last} epochs. At least {percent_of(ENOUGH_OF_MARGIN)} of this gain: "
        f"{named(enough)}. Less: {named(rest)}.{error_note(shares[rule] for rule in enough)}"
    )
    used = runs.filter(pl.col("rule").is_in(["bp", "frozen", *ranked]))
    return [
        StudyFinding(
            sentence=sentence,
            shown={},
            numbers={
                "task": task,
                "bp": best,
                "frozen": least,
                "shares": {rule: share.value for rule, share in shares.items()},
                "enough": enough,
                "decided": [rule for rule, share in shares.items() if share.decided],
                "n": sorted({share.n for share in shares.values()}),
                "labels": labels,
                "accuracies": {rule: reached(rule) for rule in labels},
            },
            runs=tuple(used["run"]),
            seeds=tuple(used["seed"].unique().sort()),
        )
    ]


# ── what `sonde run` ends with ──────────────────────────────────────────────────────────────────────
def _ranked_labels(numbers: Mapping[str, Any], kind: str) -> tuple[list[str], list[str]]:
    """The rules that are `enough` or `decided`, and the others, each with the largest share first."""
    ranked = sorted(numbers["shares"], key=lambda rule: -numbers["shares"][rule])
    inside = [numbers["labels"][rule] for rule in ranked if rule in numbers[kind]]
    return inside, [numbers["labels"][rule] for rule in ranked if rule not in numbers[kind]]


def depth_answer(numbers: Mapping[str, Any]) -> str:
    """Which rules recover most of BP's gain, on which task."""
    enough, rest = _ranked_labels(numbers, "enough")
    gain = f"at least {percent_of(ENOUGH_OF_MARGIN)} of BP's gain over frozen blocks"
    if not enough:
        return f"On {numbers['task']}, no rule recovers {gain}."
    less = f", {listed(rest, MOST_NAMES)} less" if rest else ""
    return f"On {numbers['task']}, {listed(enough, MOST_NAMES)} recover{'s' * (len(enough) == 1)} {gain}{less}."


def depth_sureness(numbers: Mapping[str, Any]) -> str:
    """For which rules the interval of the share lies on one side of the limit."""
    decided, undecided = _ranked_labels(numbers, "decided")
    test = f"95 % interval of the share against {percent_of(ENOUGH_OF_MARGIN)}"
    return f"{numbers['task']}: {sureness(numbers['n'], decided, undecided, test)}"


def depth_columns(numbers: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Headings, and rule → cells: the accuracy and the share on the task where depth matters."""
    task, cells = numbers["task"], {}
    for rule in numbers["labels"]:
        share = said_share(numbers["shares"][rule]) if rule in numbers["shares"] else "–"
        cells[rule] = [accuracy(numbers["accuracies"][rule]), share]
    return {f"{task} acc.": "right", "of BP's gain": "right"}, cells


def rules_conclusion(findings: Sequence[StudyFinding], cells: Mapping[str, str]) -> Conclusion:
    """A row for each rule: the task where depth matters, then cells of the rule's own finding, by heading."""
    depth = next((finding.numbers for finding in findings if "shares" in finding.numbers), None)
    own = {finding.numbers["rule"]: finding for finding in findings if finding.shown}
    headings, of_depth = depth_columns(depth) if depth else ({}, {})
    columns = {"rule": "left", **headings, **dict.fromkeys(cells.values(), "right")}
    columns[list(columns)[-1]] = "left"
    order = sorted(own, key=lambda rule: -depth["accuracies"].get(rule, 0.0)) if depth else list(own)
    rows = [
        [own[rule].numbers["rule_label"], *of_depth.get(rule, ["–"] * len(headings)), *map(own[rule].cell, cells)]
        for rule in order
    ]
    n = [len(finding.seeds) for finding in own.values()]
    seeds = f"{n_seeds(n)} for each rule{', so nothing is decided' * (max(n) < 2)}."
    answer, sure = (depth_answer(depth), depth_sureness(depth)) if depth else ("", seeds)
    return Conclusion(answer=answer, columns=columns, rows=rows, sure=sure)
