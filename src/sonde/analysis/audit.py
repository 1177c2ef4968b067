"""Audit a store: its complete runs by recipe, by rule within each recipe, and by seed within each rule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sonde.analysis.configurations import Kind, kinds
from sonde.analysis.credit_question import LayerCredit, at_layers, credit
from sonde.analysis.ended import by_seed, complete, made_with, refuse_none
from sonde.analysis.levels import Level, levels, options_of
from sonde.analysis.questions import (
    Answer,
    Margin,
    corrected,
    gradient,
    margin,
    scale,
    scale_free,
    since_init,
)
from sonde.analysis.readings import MeasuredRun, measured
from sonde.analysis.thresholds import Thresholds
from sonde.core import html_parts
from sonde.core.formatting import network
from sonde.core.run_ids import Flat, distinct_names, identity, without
from sonde.core.seed_statistics import Summary, summarise, summarise_known
from sonde.store.load import load
from sonde.store.place import Place
from sonde.store.stored import Run, Runs

QUESTIONS = {"D1": scale, "D2": gradient, "D3": credit}
"""Asked of every run; D4, the margin, is asked of the rule."""

NUDGE = "nudge[0.01]"
CONTROLLED = ("credit_cosine", "rho", NUDGE)
"""Metrics that are measured beside a ceiling, `…/bp`, and a null, `…/null`; two of them with its spread over draws."""

METRICS = (
    "growth",
    "hidden_norm",
    "grad_per_error",
    "grad_resolution",
    "test_acc",
    "train_acc",
    *(f"{metric}{control}" for metric in CONTROLLED for control in ("", "/bp", "/null", "/null_std")),
)
"""All that an audit reads."""

MOST_SAID = 4  # rules that the short form names

BESIDES = ("rule", "seed")
"""In these, runs of one recipe may differ."""


def read(root: str | Place) -> Runs:
    """A store with the rows that an audit asks for."""
    return load(root, metrics=METRICS)


@dataclass(frozen=True, kw_only=True)
class RunAudit:
    """One run's answers."""

    run: MeasuredRun
    answers: dict[str, Answer]
    credits: list[LayerCredit]  # when D3 was last asked; none where credit is trivial


@dataclass(frozen=True, kw_only=True)
class Diverged:
    """A run that came to no end: its loss or weights were not finite after an epoch."""

    run: str
    seed: int
    epoch: int


@dataclass(frozen=True, kw_only=True)
class Tally:
    """One question over seeds.  There is no vote: it fired in k of n seeds, and the sentence says so."""

    fired: dict[int, Answer]
    clear: dict[int, Answer]
    undefined: dict[int, Answer]
    not_asked: dict[int, Answer]

    @property
    def n(self) -> int:
        return len(self.fired) + len(self.clear) + len(self.undefined)

    @property
    def reason(self) -> str | None:
        """Why it is undefined, where it is."""
        return next((answer.reason for answer in self.undefined.values()), None)


@dataclass(frozen=True, kw_only=True)
class Controlled:
    """A mean over the deep layers with its null and its ceiling, each over seeds."""

    metric: str
    layers: tuple[int, ...]
    value: Summary
    null: Summary
    ceiling: Summary


@dataclass(frozen=True, kw_only=True)
class RuleAudit:
    """One rule of a recipe."""

    rule: str
    label: str
    options: dict[str, Any]
    depth: int
    runs: list[RunAudit]  # in the order of seeds
    margin: Margin  # D4
    diverged: list[Diverged]  # in the order of seeds
    left_out: dict[str, str]  # runs of this rule and recipe that have not come to their end
    thresholds: Thresholds

    @property
    def seeds(self) -> list[int]:
        return [one.run.seed for one in self.runs]

    @property
    def ids(self) -> list[str]:
        return [one.run.id for one in self.runs]

    @property
    def ended(self) -> list[str]:
        """All runs the verdict stands on: those whose numbers it has, and those that diverged."""
        return [*self.ids, *(one.run for one in self.diverged)]

    def tally(self, question: str) -> Tally:
        answers = {one.run.seed: one.answers[question] for one in self.runs}

        def of(wanted: Callable[[Answer], bool]) -> dict[int, Answer]:
            return {seed: answer for seed, answer in answers.items() if wanted(answer)}

        return Tally(
            fired=of(lambda answer: answer.fired is True),
            clear=of(lambda answer: answer.fired is False),
            undefined=of(lambda answer: answer.asked and answer.fired is None),
            not_asked=of(lambda answer: not answer.asked),
        )

    def value(self, question: str) -> Summary:
        """The question's quantity at the end, over seeds."""
        return summarise_known([one.answers[question] for one in self.runs])

    def beside(self, question: str) -> Summary:
        """The question's second quantity at the end, over seeds."""
        return summarise(one.answers[question].beside for one in self.runs)

    def stream(self) -> Summary:
        """‖h_L‖ at the last epoch relative to init, over seeds."""
        return summarise_known([since_init(one.run, one.run.epochs, "hidden_norm") for one in self.runs])

    def scale_free(self) -> Summary:
        """‖g_L‖·‖h_L‖/‖e‖ at the last epoch relative to init, over seeds."""
        return summarise_known([scale_free(one.run, one.run.epochs) for one in self.runs])

    def scalar(self, metric: str) -> Summary:
        """A metric of the whole network at the last epoch, over seeds."""
        return summarise_known([one.run.at(metric, one.run.epochs) for one in self.runs])

    def controlled(self, metric: str) -> Controlled:
        """A measure of the credit at the last epoch: its mean over layers 1 … L−1, beside null and ceiling."""
        runs = [one.run for one in self.runs]
        of = {
            control: summarise_known([run.mean(metric + control, run.epochs, run.deep) for run in runs])
            for control in ("", "/null", "/bp")
        }
        layers = tuple(range(1, self.depth))
        return Controlled(metric=metric, layers=layers, value=of[""], null=of["/null"], ceiling=of["/bp"])

    @cached_property
    def measures(self) -> dict[str, Controlled]:
        return {metric: self.controlled(metric) for metric in CONTROLLED}


@dataclass(frozen=True, kw_only=True)
class RecipeAudit:
    """The rules that were run with one recipe."""

    title: str
    recipe: Flat  # what the runs share
    rules: list[RuleAudit]
    made_with: dict[str, list[str]]  # version and commit → runs


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Every recipe, and the runs that are left out: run → why."""

    recipes: list[RecipeAudit]
    left_out: dict[str, str]
    thresholds: Thresholds

    def __repr__(self) -> str:
        from sonde.analysis.verdict import verdict

        rules = [f"{rule.label}: {verdict(rule)}" for recipe in self.recipes for rule in recipe.rules]
        rest = f"; and {len(rules) - MOST_SAID} more" if len(rules) > MOST_SAID else ""
        return f"<audit of {'; '.join(rules[:MOST_SAID])}{rest}>"

    def _repr_html_(self) -> str:
        from sonde.analysis.recipe_table import SPREAD, columns, footnotes, lines
        from sonde.analysis.verdict import sentence

        parts = []
        for recipe in self.recipes:
            parts.append(html_parts.table(columns(recipe), lines(recipe), recipe.title))
            parts.append(html_parts.listing(map(sentence, recipe.rules)))
            parts += map(html_parts.small, footnotes(recipe))
        asked = (f"{question}: {words}" for question, words in self.thresholds.words.items())
        parts += map(html_parts.small, [*asked, SPREAD])
        left_out = html_parts.listing(f"left out: {run} ({why})" for run, why in self.left_out.items())
        return "".join([*parts, left_out])


class Judge:
    """Answers of one store.  Studies share runs with the whole store: what was asked once is not asked again."""

    def __init__(self, stored: Runs) -> None:
        self.stored = stored
        self.answered: dict[tuple[str, Thresholds], RunAudit] = {}

    @cached_property
    def measured(self) -> dict[str, MeasuredRun]:
        return measured(self.stored.rows, complete(self.stored)[0], METRICS)

    def run(self, id: str, thresholds: Thresholds) -> RunAudit:
        """The questions asked of a run."""
        if (id, thresholds) not in self.answered:
            run = self.measured[id]
            answers = {name: ask(run, thresholds) for name, ask in QUESTIONS.items()}
            trivial, epoch = run.rule in ("bp", "frozen"), answers["D3"].epoch
            credits = [] if trivial or epoch is None else at_layers(run, epoch, thresholds)
            self.answered[id, thresholds] = RunAudit(run=run, answers=answers, credits=credits)
        return self.answered[id, thresholds]


def audit(stored: Runs, thresholds: Thresholds | None = None, judge: Judge | None = None) -> Audit:
    """Ask the four questions of every run that has ended; `judge` knows the store of which these are all runs or some.

    Of a run that diverged it says when; its numbers are not averaged with those of the others.
    """
    thresholds, judge = thresholds or Thresholds(), judge or Judge(stored)
    runs, left_out = complete(stored)
    lost = [run for run in stored.runs if run.manifest.state == "diverged"]
    left_out = {run: why for run, why in left_out.items() if run not in {one.id for one in lost}}
    refuse_none([*runs, *lost], left_out)
    inside = {run.id for run in (*runs, *lost)}
    recipes: dict[str, list[Kind]] = {}
    for kind in kinds(stored.runs):
        recipes.setdefault(identity(without(kind.flat, BESIDES)), []).append(kind)
    recipes = {
        key: members
        for key, members in recipes.items()
        if any(run.id in inside for kind in members for run in kind.runs)
    }
    named = [(_name(members[0]), without(members[0].flat, BESIDES)) for members in recipes.values()]
    found = [
        RecipeAudit(
            title=title,
            recipe=without(members[0].flat, BESIDES),
            rules=_rules(members, judge, left_out, thresholds),
            made_with=made_with(run for kind in members for run in kind.runs if run.id in inside),
        )
        for title, members in zip(distinct_names(named), recipes.values(), strict=True)
    ]
    return Audit(recipes=found, left_out=left_out, thresholds=thresholds)


def _name(kind: Kind) -> str:
    """What a recipe is, in few words."""
    about, epochs = kind.runs[0].about, kind.flat["epochs"]
    return f"{network(about)} on {about['task_label']}, d = {about['width']}, L = {about['depth']}, {epochs} epochs"


def _rules(kinds: Sequence[Kind], judge: Judge, left_out: dict[str, str], thresholds: Thresholds) -> list[RuleAudit]:
    """Kinds of one recipe differ in the rule, so each is a rule with its options."""
    present = levels([kind.flat for kind in kinds], "rule")
    members = {
        identity(options_of(kind.flat, "rule")): sorted(kind.runs, key=lambda run: run.config["seed"]) for kind in kinds
    }
    ended = {
        key: by_seed((run for run in runs if run.id not in left_out), present[key].label)
        for key, runs in members.items()
    }
    inside = {
        key: {seed: run for seed, run in runs.items() if run.manifest.state == "complete"}
        for key, runs in ended.items()
    }
    frozen, why = _baseline(present, inside)
    base = {seed: judge.measured[run.id] for seed, run in frozen.items()}
    own = {key: [judge.run(run.id, thresholds) for run in inside[key].values()] for key in present}
    confidence = thresholds.confidence
    margins = {
        key: margin(present[key].name, [one.run for one in runs], base, why, confidence) for key, runs in own.items()
    }
    margins = corrected(margins, confidence)
    found = []
    for key in sorted(present, key=lambda key: (present[key].name == "frozen", present[key].name != "bp")):
        if not ended[key]:
            continue
        level, about = present[key], members[key][0].about
        namesake = sum(runs[0].about["rule_label"] == about["rule_label"] for runs in members.values()) > 1
        found.append(
            RuleAudit(
                rule=level.name,
                label=about["rule_label"] + level.label.removeprefix(level.name) * namesake,
                options=level.options,
                depth=about["depth"],
                runs=own[key],
                margin=margins[key],
                diverged=[
                    Diverged(run=run.id, seed=seed, epoch=run.manifest.epoch or 0)
                    for seed, run in ended[key].items()
                    if seed not in inside[key]
                ],
                left_out={run.id: left_out[run.id] for run in members[key] if run.id in left_out},
                thresholds=thresholds,
            )
        )
    return found


def _baseline(present: dict[str, Level], inside: dict[str, dict[int, Run]]) -> tuple[dict[int, Run], str]:
    """The frozen runs by seed, or why there is no baseline."""
    frozen = {level.label: inside[key] for key, level in present.items() if level.name == "frozen" and inside[key]}
    if not frozen:
        return {}, "there is no frozen baseline of this recipe"
    if len(frozen) > 1:
        return {}, f"there are several frozen baselines of this recipe: {', '.join(frozen)}"
    return next(iter(frozen.values())), ""
