"""Audit a store: complete runs are grouped by recipe, then by rule, then by seed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sonde.analysis.questions import (
    AuditAnswer,
    LayerCredit,
    Margin,
    ask_credit,
    ask_gradient,
    ask_scale,
    corrected_margins,
    credit_at_layers,
    margin_over_frozen,
    scale_free,
    since_init,
)
from sonde.analysis.runs import Level, Recipe, by_recipe, by_seed, complete, levels, made_with, options_of, refuse_none
from sonde.core import html_parts
from sonde.core.formatting import Thresholds, network
from sonde.core.run_ids import Flat, distinct_names, identity, without
from sonde.core.seed_statistics import Summary, summarise, summarise_known
from sonde.store.files import Place
from sonde.store.load import RowReader, load
from sonde.store.run import Run, Runs, with_readings

QUESTIONS = {"D1": ask_scale, "D2": ask_gradient, "D3": ask_credit}
"""Asked of every run; D4, the margin over frozen blocks, is asked of the rule."""

NUDGE_METRIC = "nudge[0.01]"
STREAM_LABEL = "‖h_L‖ ÷ init"
CONTROLLED = ("credit_cosine", "rho", NUDGE_METRIC)
"""Metrics that have a ceiling, `…/bp`, and a null, `…/null`; all but the nudge also have `…/null_std`."""

AUDIT_METRICS = (
    "growth",
    "hidden_norm",
    "grad_per_error",
    "grad_resolution",
    "test_acc",
    "train_acc",
    *(f"{metric}{control}" for metric in CONTROLLED for control in ("", "/bp", "/null", "/null_std")),
)
"""The metrics that an audit reads."""

_MOST_RULES = 4  # rules that `repr` names
_RUNS_AT_ONCE = 250  # whose rows are read together

_BESIDES = ("rule", "seed")
"""Keys in which runs of one recipe may differ."""


def read_for_audit(root: str | Place) -> Runs:
    """Load a store with the rows that an audit reads."""
    return load(root, metrics=AUDIT_METRICS)


@dataclass(frozen=True, kw_only=True)
class RunAudit:
    """The answers of one run."""

    run: Run
    answers: dict[str, AuditAnswer]
    credits: list[LayerCredit]  # at the epoch of D3's answer; empty for bp and frozen


@dataclass(frozen=True, kw_only=True)
class Diverged:
    """A run whose loss or weights were not finite after an epoch."""

    run: str
    seed: int
    epoch: int


@dataclass(frozen=True, kw_only=True)
class Tally:
    """The answers to one question by seed; the sentence says in how many of n seeds it fired."""

    fired: dict[int, AuditAnswer]
    clear: dict[int, AuditAnswer]
    undefined: dict[int, AuditAnswer]
    not_asked: dict[int, AuditAnswer]

    @property
    def n(self) -> int:
        """How many seeds were asked."""
        return len(self.fired) + len(self.clear) + len(self.undefined)

    @property
    def reason(self) -> str | None:
        """Why it is undefined in the first seed in which it is."""
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
    task: str  # its label
    options: dict[str, Any]
    depth: int
    runs: list[RunAudit]  # in the order of seeds
    margin: Margin  # D4
    diverged: list[Diverged]  # in the order of seeds
    left_out: dict[str, str]  # runs of this rule and recipe that did not complete: run → why
    thresholds: Thresholds

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs that ended."""
        return [one.run.seed for one in self.runs]

    @property
    def ids(self) -> list[str]:
        """Ids of the runs that ended."""
        return [one.run.id for one in self.runs]

    @property
    def ended(self) -> list[str]:
        """Ids of the runs behind the verdict: complete ones and those that diverged."""
        return [*self.ids, *(one.run for one in self.diverged)]

    def tally(self, question: str) -> Tally:
        """The answers to one question, by seed."""
        answers = {one.run.seed: one.answers[question] for one in self.runs}

        def of(wanted: Callable[[AuditAnswer], bool]) -> dict[int, AuditAnswer]:
            return {seed: answer for seed, answer in answers.items() if wanted(answer)}

        return Tally(
            fired=of(lambda answer: answer.fired is True),
            clear=of(lambda answer: answer.fired is False),
            undefined=of(lambda answer: answer.asked and answer.fired is None),
            not_asked=of(lambda answer: not answer.asked),
        )

    def value(self, question: str) -> Summary:
        """The quantity of the question at the last epoch, over seeds."""
        return summarise_known([one.answers[question] for one in self.runs])

    def beside(self, question: str) -> Summary:
        """The second quantity of the question at the last epoch, over seeds."""
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
        """A measure of the credit at the last epoch, with null and ceiling: means over layers 1 … L−1."""
        runs = [one.run for one in self.runs]
        of = {
            control: summarise_known([run.mean(metric + control, run.epochs, run.deep) for run in runs])
            for control in ("", "/null", "/bp")
        }
        layers = tuple(range(1, self.depth))
        return Controlled(metric=metric, layers=layers, value=of[""], null=of["/null"], ceiling=of["/bp"])

    @cached_property
    def measures(self) -> dict[str, Controlled]:
        """Every metric that has controls, beside its ceiling and its null."""
        return {metric: self.controlled(metric) for metric in CONTROLLED}


@dataclass(frozen=True, kw_only=True)
class RecipeAudit:
    """The rules that were trained with one recipe."""

    title: str
    recipe: Flat  # what the runs share
    rules: list[RuleAudit]
    made_with: dict[str, list[str]]  # version and commit → runs


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The audit of every recipe, and the runs that are left out: run → why."""

    recipes: list[RecipeAudit]
    left_out: dict[str, str]
    thresholds: Thresholds

    def __repr__(self) -> str:
        from sonde.analysis.audit_text import verdict

        rules = [f"{rule.label}: {verdict(rule)}" for recipe in self.recipes for rule in recipe.rules]
        rest = f"; and {len(rules) - _MOST_RULES} more" if len(rules) > _MOST_RULES else ""
        return f"<audit of {'; '.join(rules[:_MOST_RULES])}{rest}>"

    def _repr_html_(self) -> str:
        from sonde.analysis.audit_text import AUDIT_SPREAD, audit_columns, audit_footnotes, audit_rows, sentence

        parts = []
        for recipe in self.recipes:
            parts.append(html_parts.table(audit_columns(recipe), audit_rows(recipe), recipe.title))
            parts.append(html_parts.listing(map(sentence, recipe.rules)))
            parts += map(html_parts.small, audit_footnotes(recipe))
        asked = (f"{question}: {words}" for question, words in self.thresholds.words.items())
        parts += map(html_parts.small, [*asked, AUDIT_SPREAD])
        left_out = html_parts.listing(f"left out: {run} ({why})" for run, why in self.left_out.items())
        return "".join([*parts, left_out])


class AuditCache:
    """Caches the answers of the runs of one store, which several audits share."""

    def __init__(self, stored: Runs, reader: RowReader | None = None) -> None:
        """With a `reader`, the rows are read a few runs at a time, and only their readings are kept."""
        self.stored, self.reader = stored, reader
        self.answered: dict[tuple[str, Thresholds], RunAudit] = {}

    @cached_property
    def measured(self) -> dict[str, Run]:
        """Run id → the run with its readings."""
        runs = complete(self.stored)[0]
        if self.reader is None:
            return with_readings(self.stored.rows, runs, AUDIT_METRICS)
        found: dict[str, Run] = {}
        for first in range(0, len(runs), _RUNS_AT_ONCE):
            some = runs[first : first + _RUNS_AT_ONCE]
            rows = self.reader([run.id for run in some], AUDIT_METRICS)
            found |= with_readings(rows, some, AUDIT_METRICS)
        return found

    def run(self, id: str, thresholds: Thresholds) -> RunAudit:
        """The answers of a run, computed once for each set of thresholds."""
        if (id, thresholds) not in self.answered:
            run = self.measured[id]
            answers = {name: ask(run, thresholds) for name, ask in QUESTIONS.items()}
            trivial, epoch = run.rule in ("bp", "frozen"), answers["D3"].epoch
            credits = [] if trivial or epoch is None else credit_at_layers(run, epoch, thresholds)
            self.answered[id, thresholds] = RunAudit(run=run, answers=answers, credits=credits)
        return self.answered[id, thresholds]


def audit(stored: Runs, thresholds: Thresholds | None = None, cache: AuditCache | None = None) -> Audit:
    """Ask the four questions of every run that ended.  A `cache` of a larger store may be shared between audits.

    A run that diverged is listed with its epoch; its numbers are in no average.
    """
    thresholds, cache = thresholds or Thresholds(), cache or AuditCache(stored)
    runs, left_out = complete(stored)
    lost = [run for run in stored.runs if run.manifest.state == "diverged"]
    left_out = {run: why for run, why in left_out.items() if run not in {one.id for one in lost}}
    refuse_none([*runs, *lost], left_out)
    inside = {run.id for run in (*runs, *lost)}
    recipes: dict[str, list[Recipe]] = {}
    for kind in by_recipe(stored.runs):
        recipes.setdefault(identity(without(kind.flat, _BESIDES)), []).append(kind)
    recipes = {
        key: members
        for key, members in recipes.items()
        if any(run.id in inside for kind in members for run in kind.runs)
    }
    named = [(_name(members[0]), without(members[0].flat, _BESIDES)) for members in recipes.values()]
    found = [
        RecipeAudit(
            title=title,
            recipe=without(members[0].flat, _BESIDES),
            rules=_rules(members, cache, left_out, thresholds),
            made_with=made_with(run for kind in members for run in kind.runs if run.id in inside),
        )
        for title, members in zip(distinct_names(named), recipes.values(), strict=True)
    ]
    return Audit(recipes=found, left_out=left_out, thresholds=thresholds)


def _name(kind: Recipe) -> str:
    """A short title of a recipe."""
    about, epochs = kind.runs[0].about, kind.flat["epochs"]
    return f"{network(about)} on {about['task_label']}, d = {about['width']}, L = {about['depth']}, {epochs} epochs"


def _rules(
    recipes: Sequence[Recipe], cache: AuditCache, left_out: dict[str, str], thresholds: Thresholds
) -> list[RuleAudit]:
    """The audit of each rule, with its options, of one recipe."""
    present = levels([kind.flat for kind in recipes], "rule")
    members = {
        identity(options_of(kind.flat, "rule")): sorted(kind.runs, key=lambda run: run.config["seed"])
        for kind in recipes
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
    base = {seed: cache.measured[run.id] for seed, run in frozen.items()}
    own = {key: [cache.run(run.id, thresholds) for run in inside[key].values()] for key in present}
    confidence = thresholds.confidence
    margins = {
        key: margin_over_frozen(present[key].name, [one.run for one in runs], base, why, confidence)
        for key, runs in own.items()
    }
    margins = corrected_margins(margins, confidence)
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
                task=about["task_label"],
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
