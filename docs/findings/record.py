"""The record that the audit repeats, and which difference of recipe could explain a difference from it."""

import math
from collections.abc import Mapping
from typing import Any

import polars as pl

from sonde.audit.audit import Audit, RuleAudit
from sonde.config import RunConfig, change, label_of, name_of
from sonde.rules import RULES
from sonde.spreads import t_interval
from sonde.store.stored import Runs
from sonde.studies import STUDIES
from sonde.studies.study import Gathered, gather
from sonde.verdicts import accuracy, number, signed

RECORDED = {
    "bp": 0.615,
    "fa": 0.401,
    "dfa": 0.306,
    "state_bridge": 0.205,
    "credit_bridge": 0.289,
    "frozen": 0.349,
}
"""Test accuracy after 100 epochs on the original pixels, three seeds, on GPUs: the record that the audit repeats."""

SHORT = 12  # epochs of the runs that ask for it
CHANGES: dict[str, Mapping[str, Any]] = {
    "as it is": {},
    "no augmentation": {"task.augment": False},
    "no weight decay": {"optimiser.weight_decay": 0.0},
    "constant rate": {"optimiser.schedule": "constant"},
    "credit as it comes": {"rule.credit_scale": "none"},
}
"""What is changed in the recipe of the audit, one thing at a time."""
CHANGED_RULES = ("bp", "fa", "dfa", "frozen")
CHANGED_SEED = 42


def compared(audited: Audit) -> list[list[str]]:
    """Rule, our test accuracy by seed, the record's."""
    return [
        [
            rule.label,
            ", ".join(
                f"{accuracy(one.run.at('test_acc', one.run.epochs).value)} ({one.run.seed})"
                for one in rule.runs
            ),
            accuracy(RECORDED[rule.rule]),
        ]
        for recipe in audited.recipes
        for rule in recipe.rules
        if rule.runs
    ]


def above_record(audited: Audit, rule: str) -> str:
    """By how many points the mean of our seeds is above the record, or below it."""
    (known,) = [one for one in audited.recipes[0].rules if one.rule == rule]
    return signed(100 * (known.scalar("test_acc").mean - RECORDED[rule]))


def changed_recipes(stored: Runs) -> list[list[str]]:
    """Each change of the recipe: the rules' test accuracy, and what the change adds to it in points."""
    reached = {label: [_reached(stored, rule, label) for rule in CHANGED_RULES] for label in CHANGES}
    (unchanged, first), *changes = reached.items()
    return [
        [unchanged, *(accuracy(value) for value in first)],
        *(
            [label, *(_with_gain(value, base) for value, base in zip(values, first, strict=True))]
            for label, values in changes
        ),
        [
            "no augmentation, noisy pixels",
            *(
                _with_gain(_of_noise(stored, rule), base)
                for rule, base in zip(CHANGED_RULES, reached["no augmentation"], strict=True)
            ),
        ],
    ]


def changed_runs(stored: Runs) -> Gathered:
    """The runs of every change of the recipe that was trained."""
    configs = [_changed(rule, label) for rule in CHANGED_RULES for label in CHANGES]
    return gather(stored, configs, "docs/findings/runs")


def _changed(rule: str, label: str) -> RunConfig:
    (config,) = (
        config
        for config in STUDIES["audit"].configs("full", (CHANGED_SEED,))
        if name_of("rule", config.rule) == rule
    )
    return change(config, {"epochs": SHORT, **CHANGES[label]})


def _reached(stored: Runs, rule: str, label: str) -> float:
    """Test accuracy after the short recipe; NaN where there is no such run."""
    rows = stored.rows.filter(run=_changed(rule, label).id, metric="test_acc", epoch=SHORT)
    return float(rows["value"].item()) if len(rows) else math.nan


def _of_noise(stored: Runs, rule: str) -> float:
    """Test accuracy on the images of noise.py; NaN where there is no such run."""
    of = [
        run.id
        for run in stored.runs
        if (run.config["task"]["name"], run.config["rule"]["name"]) == ("noise", rule)
    ]
    rows = stored.rows.filter(pl.col("run").is_in(of), metric="test_acc", epoch=SHORT)
    return float(rows["value"].item()) if len(rows) else math.nan


def _with_gain(reached: float, base: float) -> str:
    if math.isnan(reached):
        return "not run"
    return f"{accuracy(reached)} ({signed(100 * (reached - base))})" if reached != base else "the same run"


def record_answer(stored: Runs, audited: Audit) -> str:
    """Whether our seeds spread as far as the record, and where not, whether a change of the recipe costs as much."""
    seeded = {rule.rule: rule for rule in audited.recipes[0].rules}
    within, beyond, explained = [], [], False
    for rule in ("fa", "dfa", "frozen"):
        label, reached = label_of("rule", RULES[rule]()), _by_seed(seeded[rule])
        above = 100 * (sum(reached) / len(reached) - RECORDED[rule])
        around = t_interval(reached)
        said = f"{label} ends {number(above)} points above the record, n = {len(reached)}"
        if around.reason is None:
            said += f", interval {accuracy(around.low)} to {accuracy(around.high)}"
        if around.reason is None and around.low <= RECORDED[rule] <= around.high:
            within.append(said)
            continue
        costs = {
            label: 100 * (_reached(stored, rule, "as it is") - _reached(stored, rule, label))
            for label in CHANGES
        }
        changed, most = max((one for one in costs.items() if not math.isnan(one[1])), key=lambda one: one[1])
        explained = explained or most > above / 2
        cost = f"“{changed}” costs most, {number(most)}" if most > 0 else "no change costs anything"
        beyond.append(f"{said}, and of the changes {cost}")
    parts = []
    if within:
        parts.append(
            f"The 95 % interval of our mean holds the record, so seeds may be all of it: {'; '.join(within)}."
        )
    if beyond:
        answer = (
            "One difference of recipe accounts for much of"
            if explained
            else "No difference of recipe that was tried explains"
        )
        parts.append(f"{answer} {'the rest' if within else 'it'}: {'; '.join(beyond)}.")
    return " ".join(parts)


def _by_seed(rule: RuleAudit) -> list[float]:
    return [one.run.at("test_acc", one.run.epochs).value for one in rule.runs]
