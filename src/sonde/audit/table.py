"""The audit of a recipe as a table: one line per rule, every mean with its spread, undefined said as such."""

import math

from sonde.audit.audit import RecipeAudit
from sonde.audit.credit import span
from sonde.audit.sentence import verdict
from sonde.audit.subject import NUDGE
from sonde.audit.verdict import Controlled, RuleAudit
from sonde.statistics import Summary
from sonde.verdicts import number

BARRED = "†"
"""Marks a cosine that is not evidence because the BP gradient has collapsed."""


def columns(recipe: RecipeAudit) -> dict[str, str]:
    """Headings, each left or right; averages over layers name them."""
    layers = span(range(1, recipe.rules[0].depth))
    headings = (
        "test acc.",
        "growth",
        "‖g_L‖/init",
        f"cosine, layers {layers} (null, BP)",
        f"ρ, layers {layers} (null, BP)",
        f"{NUDGE}, layers {layers} (null, BP)",
        "points over frozen",
    )
    return {"rule": "left", "n": "right", **dict.fromkeys(headings, "right"), "verdict": "left"}


def lines(recipe: RecipeAudit) -> list[list[str]]:
    """One line per rule."""
    return [_line(rule) for rule in recipe.rules]


def footnotes(recipe: RecipeAudit) -> list[str]:
    """What the averages are, why a value is undefined, which cosines are not evidence, what chance was judged by."""
    notes = ["cosine, ρ, nudge: the rule's mean over the layers named (a random vector's, BP's)"]
    for rule in recipe.rules:
        for why, names in _undefined(rule).items():
            notes.append(f"{rule.label}: {', '.join(names)} undefined: {why}")
        if barred(rule):
            notes.append(f"{rule.label}: {BARRED} not evidence, for the BP gradient has collapsed (D2)")
        bases = sorted({layer.null.basis for run in rule.runs for layer in run.credits if not layer.reason})
        if bases and rule.rule != "bp":
            notes.append(
                f"{rule.label}: standard error of the null, by measure and layer: {', '.join(bases)}"
            )
    return notes


def barred(rule: RuleAudit) -> bool:
    """Whether the rule's cosine is not evidence, at least for one seed."""
    return rule.rule not in ("bp", "frozen") and bool(rule.tally("D2").fired)


def _undefined(rule: RuleAudit) -> dict[str, list[str]]:
    """Reason → what is undefined for that reason."""
    cosine, rho, nudge = rule.measures.values()
    means = {"cosine": cosine, "ρ": rho, NUDGE: nudge}
    summaries = {
        "test accuracy": rule.scalar("test_acc"),
        "growth": rule.value("D1"),
        "‖g_L‖/init": rule.value("D2"),
        **{name: known.value for name, known in means.items()},
        **{f"{name} (null)": known.null for name, known in means.items() if known.value.n},
        **{f"{name} (BP)": known.ceiling for name, known in means.items() if known.value.n},
        **({} if rule.rule == "frozen" else {"points over frozen": rule.value("D4")}),
    }
    no_credit = next((answer.reason for answer in rule.tally("D3").not_asked.values()), None)
    found: dict[str, list[str]] = {}
    for name, summary in summaries.items():
        if summary.reason is not None:
            reason = no_credit if no_credit and name in means else summary.reason
            found.setdefault(reason, []).append(name)
    return found


def _line(rule: RuleAudit) -> list[str]:
    cosine, rho, nudge = (_controlled(known, rule) for known in rule.measures.values())
    return [
        rule.label,
        str(len(rule.runs)),
        spread(rule.scalar("test_acc"), len(rule.runs), 3),
        spread(rule.value("D1"), len(rule.runs)),
        spread(rule.value("D2"), len(rule.runs)),
        f"{cosine} {BARRED}" if barred(rule) else cosine,
        rho,
        nudge,
        "baseline" if rule.rule == "frozen" else spread(rule.value("D4"), len(rule.runs)),
        verdict(rule),
    ]


def _controlled(known: Controlled, rule: RuleAudit) -> str:
    if not (known.value.n or known.null.n or known.ceiling.n):
        return "undefined"
    controls = f"{number(known.null.mean, 1)}, {number(known.ceiling.mean)}"
    return f"{spread(known.value, len(rule.runs))} ({controls})"


def spread(summary: Summary, runs: int, digits: int = 2) -> str:
    """mean ± sample standard deviation over seeds; n where it is not that of the line."""
    text = number(summary.mean, digits)
    if not math.isnan(summary.std):
        text += f" ± {number(summary.std, 1)}"
    return text if summary.n in (0, runs) else f"{text} (n = {summary.n})"
