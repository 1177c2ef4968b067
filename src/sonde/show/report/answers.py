"""A study's answer in one sentence, the values behind it by network or rule, and how sure it is.

The sentence of a study is its conclusion, as `sonde run` prints it; runs in no study have one of their own.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sonde.analysis import theory
from sonde.analysis.audit import RecipeAudit, RuleAudit, audit
from sonde.analysis.conclusions import Conclusion, n_seeds
from sonde.analysis.evidence import Evidence
from sonde.core import formatting
from sonde.core.formatting import HARDLY, accuracy, listed, number, percent, signed
from sonde.core.seed_statistics import Interval, paired, summarise, t_interval
from sonde.metrics import TRAINED
from sonde.store.readings import Readings
from sonde.store.run import Run

if TYPE_CHECKING:
    from sonde.studies.study import Gathered, StudyFinding

MOST_POINTS = 100.0  # between two accuracies
ONE_SEED = "n = 1 seed"
LACKING = "runs with frozen blocks would show whether the trained blocks contribute"

MOST_LISTED = 5  # names in a sentence
MOST_SETTINGS = 12  # lines of a chart


@dataclass(frozen=True, kw_only=True)
class Dots:
    """One network or rule: a value for every seed, and what is said beside them."""

    label: str
    style: str  # the rule or model whose colour it has
    values: Mapping[int, float]  # seed → value; NaN where undefined
    note: str = ""
    runs: Sequence[str] = ()  # the runs behind the values


@dataclass(frozen=True, kw_only=True)
class StudyAnswer:
    """A sentence, a chart of dots and how sure they are."""

    sentence: str = ""
    sure: str = ""
    dots: Sequence[Dots]
    axis: str  # what the dots are
    metric: str = "test_acc"  # of the table of metrics: what the charts open on
    note: str = ""  # what is said beside every row
    log: bool = False
    per_cent: bool = False
    reference: tuple[str, float] | None = None  # a labelled value to compare with
    beside: Sequence[str] = ()  # sentences about what else the study trained

    @property
    def runs(self) -> list[str]:
        """The runs behind the dots."""
        return [run for dots in self.dots for run in dots.runs]

    @property
    def pair(self) -> list[str]:
        """A run of the first dots and one of the last."""
        return [dots.runs[0] for dots in (self.dots[0], self.dots[-1]) if dots.runs] if len(self.dots) > 1 else []


def study_answer(
    study: str, gathered: "Gathered", findings: Sequence["StudyFinding"], conclusion: Conclusion
) -> StudyAnswer | None:
    """The study's conclusion with a chart of its values; None where there is nothing to draw."""
    drawn = ANSWERS.get(study, of_rules)(gathered, findings)
    return drawn and replace(drawn, sentence=conclusion.answer, sure=conclusion.sure)


# ── which networks learned ──────────────────────────────────────────────────────────────────────────
def of_networks(gathered: "Gathered", findings: Sequence["StudyFinding"]) -> StudyAnswer | None:
    """The final loss of every network; of those that can represent the identity, if there are any."""
    over_depth = [finding.sentence for finding in findings if "losses_over_trivial" in finding.numbers]
    both = [known for known in (gathered.evidence.beside, gathered.evidence) if known is not None]
    answers = [found for known in both if (found := _of_evidence(known, findings)) is not None]
    return replace(answers[0], beside=over_depth) if answers else None


def _of_evidence(evidence: Evidence, findings: Sequence["StudyFinding"]) -> StudyAnswer | None:
    readings = evidence.readings()
    runs = {run["run"]: run for run in evidence.runs.iter_rows(named=True)}
    kept = [one for one in findings if set(one.runs) <= runs.keys() and "losses_over_trivial" not in one.numbers]
    if not kept:
        return None
    dots = []
    for finding in kept:
        numbers = finding.numbers
        name = _named(numbers["network"], numbers["variant"], numbers.get("rule"))
        own = [runs[run] for run in finding.runs]
        values = {run["seed"] or 0: _final_loss(readings, run) for run in own}
        floor = numbers["lowest_loss"]
        note = numbers["verdict"] + (f" (lowest {number(floor, 3)})" if floor else "")
        dots.append(Dots(label=name, style=own[0]["model"], values=values, note=note, runs=finding.runs))
    identity = set(evidence.runs["task"]) == {"identity"}
    return StudyAnswer(
        dots=sorted(dots, key=lambda one: summarise(one.values.values()).mean),
        axis="final loss (mean of the last tenth of the steps), log scale",
        metric="train_loss",
        log=True,
        reference=("predicting zero", theory.INPUT_SECOND_MOMENT) if identity else None,
    )


def _final_loss(readings: Readings, run: Mapping[str, Any]) -> float:
    ending = [readings.value(run, "batch_loss", step=step) for step in formatting.last_steps(run["steps"])]
    return formatting.loss_change(readings.value(run, "batch_loss", step=1), ending).final


def _named(network: str, variant: str | None, rule: str | None = None) -> str:
    with_ = f"{network} with {formatting.weights(variant)}" if variant else network
    return ", ".join(part for part in (with_, rule) if part)


# ── which rules train depth ─────────────────────────────────────────────────────────────────────────
def of_rules(gathered: "Gathered", findings: Sequence["StudyFinding"]) -> StudyAnswer | None:
    """Test accuracies by rule, beside that of frozen blocks, in the recipe in which depth matters most."""
    both = [runs for runs in (gathered.stored, gathered.beside) if runs.runs]
    recipes = [recipe for runs in both for recipe in audit(runs, cache=gathered.audits).recipes]
    known = {run.id: run for runs in both for run in runs.runs}
    answers = [(_gain(recipe), found) for recipe in recipes if (found := of_recipe(recipe, known)) is not None]
    if not answers:
        return None
    (_, first), *others = sorted(answers, key=lambda entry: -entry[0])
    beside = [f"{found.sentence} {found.sure}" for _, found in others]
    return replace(first, beside=beside)


def of_recipe(recipe: RecipeAudit, runs: Mapping[str, Run]) -> StudyAnswer | None:
    """The answer of one recipe; None where none of its rules has an accuracy."""
    rules = [rule for rule in recipe.rules if rule.runs and rule.scalar("test_acc").n]
    if not rules:
        return None
    about = runs[rules[0].ids[0]].about
    where = f"With {about['label']} on {about['task_label']}"
    frozen = next((rule for rule in rules if rule.rule == "frozen"), None)
    compared = [rule for rule in rules if rule.margin.asked and rule.margin.points.n]
    ordered = sorted(rules, key=lambda rule: -rule.scalar("test_acc").mean)
    sentence, sure = _depth(where, compared) if compared else _ranking(where, ordered)
    return StudyAnswer(
        sentence=sentence,
        sure=sure,
        dots=[_dots(rule, rule.label, _note(rule, bool(compared))) for rule in ordered],
        axis=TRAINED["test_acc"].label,
        note="points over frozen [95 % interval]" if compared else "",
        per_cent=True,
        reference=("frozen blocks", frozen.scalar("test_acc").mean) if frozen and compared else None,
    )


def of_settings(recipes: Sequence[RecipeAudit], names: Sequence[str], runs: Mapping[str, Run]) -> StudyAnswer | None:
    """The answer of several recipes: the most accurate one.  Each is named by the keys in which they differ."""
    several = len({rule.label for recipe in recipes for rule in recipe.rules}) > 1
    found = [
        (f"{rule.label}, {name}" if several else name, rule)
        for name, recipe in zip(names, recipes, strict=True)
        for rule in recipe.rules
        if rule.runs and rule.scalar("test_acc").n
    ]
    if not found:
        return None
    found.sort(key=lambda entry: -entry[1].scalar("test_acc").mean)
    about = runs[found[0][1].ids[0]].about
    (best, first), (worst, last) = found[0], found[-1]
    shown = found[:MOST_SETTINGS]
    sentence = f"On {about['task_label']} the best of {len(found)} settings is {best}: {_accuracy(first)}"
    sentence += f"; the worst is {worst}: {_accuracy(last)}." if len(found) > 1 else "."
    sure = f"{n_seeds(rule.scalar('test_acc').n for _, rule in found)} for each setting"
    if len(found) > 1:
        sure += f". {best} minus {found[1][0]}: {_difference(first, found[1][1])}"
    if len(shown) < len(found):
        sure += f". The chart shows the first {len(shown)} settings, the sweep below shows all"
    return StudyAnswer(
        sentence=sentence,
        sure=f"{sure}.",
        dots=[_dots(rule, name, _accuracy(rule)) for name, rule in shown],
        axis=TRAINED["test_acc"].label,
        per_cent=True,
    )


def _dots(rule: RuleAudit, label: str, note: str) -> Dots:
    return Dots(label=label, style=rule.rule, values=_accuracies(rule), note=note, runs=rule.ids)


def _accuracies(rule: RuleAudit) -> dict[int, float]:
    return {one.run.seed: one.run.at("test_acc", one.run.epochs).value for one in rule.runs}


def _accuracy(rule: RuleAudit) -> str:
    known = rule.scalar("test_acc")
    return accuracy(known.mean, known.std)


def _difference(first: RuleAudit, second: RuleAudit) -> str:
    """The difference of their accuracies, paired by seed, with its interval."""
    gaps = [100 * gap for gap in paired(_accuracies(first), _accuracies(second)).differences.values()]
    interval = t_interval(gaps)
    if interval.reason:
        return f"there is no interval ({interval.reason})"
    return f"{signed(summarise(gaps).mean)} points{_between(interval, len(gaps))}"


def _between(interval: Interval, n: int) -> str:
    """The interval in brackets, or that n is too small where it reaches beyond the possible."""
    if interval.reason:
        return ""
    if max(-interval.low, interval.high) > MOST_POINTS:
        return f" (n = {n} is too few)"
    return f" [{_tenths(interval.low)}, {_tenths(interval.high)}]"


def _gain(recipe: RecipeAudit) -> float:
    """The margin of BP over frozen blocks, in points."""
    bp = next((rule.margin.points.mean for rule in recipe.rules if rule.rule == "bp"), math.nan)
    return -math.inf if math.isnan(bp) else bp


def _note(rule: RuleAudit, compared: bool) -> str:
    if not compared:
        return _accuracy(rule)
    return "baseline" if rule.rule == "frozen" else points_text(rule)


def points_text(rule: RuleAudit) -> str:
    """Points of test accuracy over frozen blocks, with their interval."""
    points = rule.margin.points
    return f"{_tenths(points.mean)}{_between(rule.margin.interval, points.n)}" if points.n else "undefined"


def _tenths(points: float) -> str:
    """With its sign and one decimal."""
    return f"{points:+.1f}".replace("-", "−")


def _depth(where: str, rules: Sequence[RuleAudit]) -> tuple[str, str]:
    """Which rules train depth: those whose trained blocks do better than frozen ones.  D4 of the audit decides."""
    rules = sorted(rules, key=lambda rule: -rule.margin.points.mean)
    by = {
        outcome: [rule for rule in rules if rule.margin.outcome == outcome]
        for outcome in ("helps", "undecided", "hurts")
    }
    bp = next((rule for rule in rules if rule.rule == "bp"), None)
    trained, hurt = by["helps"], by["hurts"]
    ahead = [rule for rule in by["undecided"] if rule.margin.points.mean >= HARDLY]
    if trained:
        clauses = [f"{where}, {_with_points(trained)} train{'s' * (len(trained) == 1)} depth"]
    elif ahead:
        end = "ends" if len(ahead) == 1 else "end"
        clauses = [f"{where}, {_with_points(ahead)} {end} above frozen blocks, with too few seeds to be sure"]
    else:
        clauses = [f"{where}, no rule is shown to train depth"]
    if bp is not None and bp.margin.points.mean < HARDLY:
        gain = f"only {_tenths(bp.margin.points.mean)} points" if bp.margin.points.mean > 0 else "no points"
        clauses.append(f"depth hardly matters there: BP itself gains {gain} over frozen blocks")
    if hurt:
        verb = "does" if len(hurt) == 1 else "do"
        clauses.append(f"{_with_points(hurt)} {verb} worse than frozen blocks")
    return "; ".join(clauses) + ".", _sure_of_points(rules, by["undecided"])


def _with_points(rules: Sequence[RuleAudit]) -> str:
    return listed([f"{rule.label} ({_tenths(rule.margin.points.mean)})" for rule in rules], MOST_LISTED)


def _sure_of_points(rules: Sequence[RuleAudit], undecided: Sequence[RuleAudit]) -> str:
    seeds = n_seeds(rule.margin.points.n for rule in rules)
    if seeds == ONE_SEED:
        return f"{seeds}: there is no interval, so nothing is decided; it takes two seeds or more."
    confidence = f"{100 * rules[0].thresholds.confidence:g} %"
    tests = max(rule.margin.tests for rule in rules)
    corrected = f", corrected for {tests} rules" if tests > 1 else ""
    if not undecided:
        return f"{seeds}. Every rule is decided at {confidence} confidence{corrected}."
    known = [rule.margin.seeds_needed for rule in undecided if rule.margin.seeds_needed is not None]
    needed = f"; with the same mean and spread, {max(known)} seeds would be enough" if known else ""
    if len(undecided) == len(rules):
        return f"{seeds}. No rule is decided yet at {confidence} confidence{corrected}{needed}."
    names = listed([rule.label for rule in undecided], MOST_LISTED)
    return f"{seeds}. Every rule but {names} is decided at {confidence} confidence{corrected}{needed}."


def _ranking(where: str, ordered: Sequence[RuleAudit]) -> tuple[str, str]:
    """Without frozen blocks to compare with: which rule is the most accurate, and by how much."""

    def said(rule: RuleAudit) -> str:
        return f"{rule.label} reaches {accuracy(rule.scalar('test_acc').mean)}"

    first, *rest = ordered
    seeds = n_seeds(rule.scalar("test_acc").n for rule in ordered)
    if not rest:
        return (
            f"{where}, {said(first)}.",
            f"{seeds}{_spread(first)}; {LACKING}.",
        )
    sentence = f"{where}, {said(first)}, {rest[0].label} {accuracy(rest[0].scalar('test_acc').mean)}"
    if len(rest) > 1:
        sentence += f", and {rest[-1].label}, the last of {len(ordered)}, {accuracy(rest[-1].scalar('test_acc').mean)}"
    return f"{sentence}.", (f"{seeds}. {first.label} minus {rest[0].label}: {_difference(first, rest[0])}; {LACKING}.")


def _spread(rule: RuleAudit) -> str:
    known = rule.scalar("test_acc")
    return "" if math.isnan(known.std) else f", standard deviation {percent(100 * known.std)}"


# ── what became of stream and gradient ──────────────────────────────────────────────────────────────
def of_streams(gathered: "Gathered", findings: Sequence["StudyFinding"]) -> StudyAnswer | None:
    """How much the residual stream grew in every network under every rule."""
    readings = gathered.evidence.readings()
    runs = {run["run"]: run for run in gathered.evidence.runs.iter_rows(named=True)}
    kept = [finding for finding in findings if "stream_change" in finding.numbers]
    dots = []
    for finding in kept:
        own = [runs[run] for run in finding.runs]
        values = {run["seed"] or 0: readings.change(run, "hidden_norm", layer=run["depth"]) for run in own}
        name = f"{finding.numbers['network']}, {finding.numbers['rule_label']}"
        dots.append(Dots(label=name, style=finding.numbers["rule"], values=values, runs=finding.runs))
    if not dots:
        return None
    return StudyAnswer(
        dots=dots,
        axis="‖h_L‖ after training ÷ init, log scale",
        metric="hidden_norm",
        log=True,
        reference=(f"{formatting.STREAM_GREW:g} times", formatting.STREAM_GREW),
    )


ANSWERS: "dict[str, Callable[[Gathered, Sequence[StudyFinding]], StudyAnswer | None]]" = {
    "residual": of_networks,
    "snapshots": of_streams,
    "audit": of_rules,
    "cifar10": of_rules,
    "rules": of_rules,
}
