"""What studies share: recipes, so that equal runs are one run, and the question which rules train depth."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import polars as pl

from sonde.analysis.recovery import Accuracy, error_by_test_set, share_of_margin
from sonde.analysis.runs import evidence_lines
from sonde.config import Optimiser, Probing, RunConfig
from sonde.core.formatting import percent, said_share
from sonde.core.seed_statistics import paired, summarise
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


def share_of_rule(network: pl.DataFrame, runs: pl.DataFrame, readings: Readings) -> tuple[float, float]:
    """What of BP's margin over frozen blocks a rule has, means of the differences by seed; NaN without a margin.

    Beside it, of one seed, its standard error from the test samples alone; else NaN.
    """
    taken = readings.at("test_acc", epoch=runs["epochs"][0])

    def by_seed(some: pl.DataFrame) -> dict[int, Reading]:
        run_and_seed = zip(some["run"], some["seed"], strict=True)
        return {seed: taken[run] for run, seed in run_and_seed if run in taken and taken[run].defined}

    sides = [by_seed(some) for some in (runs, network.filter(rule="bp"), network.filter(rule="frozen"))]
    ours, best, least = ({seed: one.value for seed, one in side.items()} for side in sides)
    gained, margin = (paired(side, least).differences for side in (ours, best))
    around = share_of_margin(gained, margin)
    if len(around) != 1:
        return summarise(around).mean, math.nan
    (seed,) = gained.keys() & margin.keys()
    read = (Accuracy(value=side[seed].value, samples=side[seed].samples) for side in sides)
    return around[0], error_by_test_set(*read)


def named_shares(shares: Mapping[str, tuple[float, float]]) -> str:
    """Label → share and its error, in words."""
    return ", ".join(f"{label} {said_share(*share)}" for label, share in shares.items()) or "none"


def told_error(shares: Iterable[tuple[float, float]]) -> str:
    """What ± is, where one seed stands for a share, and how many of these shares it leaves above the limit."""
    known = [(share, error) for share, error in shares if not math.isnan(error)]
    if not known:
        return ""
    sure = sum(share - 2 * error >= ENOUGH_OF_MARGIN for share, error in known)
    return (
        f" n = 1: ± is the standard error of the test set alone, seeds come on top; {sure} of these are above "
        f"{ENOUGH_OF_MARGIN:.0%} by two standard errors."
    )


def which_train_depth(gathered: Gathered) -> list[StudyFinding]:
    """Of the runs beside the study: what each rule recovers of what BP gains over frozen blocks."""
    stored = gathered.beside
    if not stored.runs:
        return []
    runs, readings = evidence_lines(stored.runs), Readings(stored.rows)
    last = int(runs["epochs"][0])
    taken = readings.at("test_acc", epoch=last)

    def reached(rule: str) -> float:
        values = [taken[run].value for run in runs.filter(rule=rule)["run"] if run in taken]
        return summarise(values).mean

    others = [rule for rule in runs["rule"].unique(maintain_order=True) if rule not in ("bp", "frozen")]
    shares = {rule: share_of_rule(runs, runs.filter(rule=rule), readings) for rule in others}
    shares = {rule: share for rule, share in shares.items() if not math.isnan(share[0])}
    if not shares:
        return []
    labels = dict(runs.select("rule", "rule_label").iter_rows())

    def named(chosen: Sequence[str]) -> str:
        return named_shares({labels[rule]: shares[rule] for rule in chosen})

    ranked = sorted(shares, key=lambda rule: -shares[rule][0])
    enough = [rule for rule in ranked if shares[rule][0] >= ENOUGH_OF_MARGIN]
    rest = [rule for rule in ranked if rule not in enough]
    best, least = reached("bp"), reached("frozen")
    sentence = (
        f"Which rules train depth? On {runs['task_label'][0]}, where {runs['label'][0]} with frozen blocks reaches "
        f"{percent(100 * least)} after {last} epochs and BP {percent(100 * best)}, these recover at least "
        f"{ENOUGH_OF_MARGIN:.0%} of the difference: {named(enough)}; these do not: {named(rest)}."
        f"{told_error(shares[rule] for rule in enough)}"
    )
    used = runs.filter(pl.col("rule").is_in(["bp", "frozen", *ranked]))
    return [
        StudyFinding(
            sentence=sentence,
            shown={},
            numbers={
                "bp": best,
                "frozen": least,
                "shares": {rule: share for rule, (share, _) in shares.items()},
                "enough": enough,
            },
            runs=tuple(used["run"]),
            seeds=tuple(used["seed"].unique().sort()),
        )
    ]
