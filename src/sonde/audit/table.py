"""The audit of a recipe as a table: one line per rule, every mean with its spread, undefined said as such."""

import math

from sonde.audit.audit import RecipeAudit
from sonde.audit.credit import span
from sonde.audit.sentence import points, verdict
from sonde.audit.subject import NUDGE
from sonde.audit.verdict import Controlled, RuleAudit
from sonde.compare.makers import remark
from sonde.statistics import Summary
from sonde.verdicts import accuracy, number

BARRED = "†"
"""Marks a cosine that is not evidence because BP's own gradient does not foretell the loss."""

GRADIENT = "‖g_L‖/‖e‖ ÷ init"
GROWTH = "largest growth over a block"


def columns(recipe: RecipeAudit) -> dict[str, str]:
    """Headings, each left or right; averages over layers name them."""
    layers = span(range(1, recipe.rules[0].depth))
    headings = (
        "test acc.",
        GROWTH,
        GRADIENT,
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
    """What the averages are, why a value is undefined, which cosines are not evidence, what code made the runs."""
    confidence = recipe.rules[0].thresholds.confidence
    notes = [
        "cosine, ρ, nudge: the rule's mean over the layers named (by chance, of BP's gradient); chance is the rule "
        "with matrices or networks drawn anew, for a rule that draws none and for the nudge a random vector",
        f"points over frozen: paired by seed [{100 * confidence:g} % t interval over seeds]",
    ]
    for rule in recipe.rules:
        if not rule.runs:
            notes.append(f"{rule.label}: no run came to its end, so there is nothing to average")
            continue
        for why, names in _undefined(rule).items():
            notes.append(f"{rule.label}: {', '.join(names)} undefined: {why}")
        if rule.margin.asked and rule.margin.points.n:
            for seed, why in rule.margin.without.items():
                notes.append(f"{rule.label}: seed {seed} is not paired with frozen: {why}")
        reasons = [layer.reason for run in rule.runs for layer in run.credits if layer.barred]
        if reasons:
            notes.append(f"{rule.label}: {BARRED} {reasons[0]}")
        draws = sorted(
            {m.draws for run in rule.runs for layer in run.credits for m in (layer.cosine, layer.rho)}
        )
        if draws and draws[-1] > 1:
            notes.append(f"{rule.label}: chance was drawn {span(draws)} times a snapshot")
    made = remark(recipe.made_with)
    return [*notes, made] if made else notes


def barred(rule: RuleAudit) -> bool:
    """Whether the rule's cosine is not evidence at some layer, at least for one seed."""
    return any(layer.barred for run in rule.runs for layer in run.credits)


def _undefined(rule: RuleAudit) -> dict[str, list[str]]:
    """Reason → what is undefined for that reason."""
    cosine, rho, nudge = rule.measures.values()
    means = {"cosine": cosine, "ρ": rho, NUDGE: nudge}
    summaries = {
        "test accuracy": rule.scalar("test_acc"),
        GROWTH: rule.value("D1"),
        GRADIENT: rule.value("D2"),
        **{name: known.value for name, known in means.items()},
        **{f"{name} (null)": known.null for name, known in means.items() if known.value.n},
        **{f"{name} (BP)": known.ceiling for name, known in means.items() if known.value.n},
        **({} if rule.rule == "frozen" else {"points over frozen": rule.margin.points}),
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
    test = rule.scalar("test_acc")
    return [
        rule.label,
        str(len(rule.runs)),
        accuracy(test.mean, test.std) + _n(test, rule),
        spread(rule.value("D1"), rule),
        spread(rule.value("D2"), rule),
        f"{cosine} {BARRED}" if barred(rule) else cosine,
        rho,
        nudge,
        "baseline" if rule.rule == "frozen" else points(rule) + _n(rule.margin.points, rule),
        verdict(rule),
    ]


def _controlled(known: Controlled, rule: RuleAudit) -> str:
    if not (known.value.n or known.null.n or known.ceiling.n):
        return "undefined"
    controls = f"{number(known.null.mean, 1)}, {number(known.ceiling.mean)}"
    return f"{spread(known.value, rule)} ({controls})"


def spread(summary: Summary, rule: RuleAudit, digits: int = 2) -> str:
    """mean ± sample standard deviation over seeds; n where it is not that of the line."""
    text = number(summary.mean, digits)
    if not math.isnan(summary.std):
        text += f" ± {number(summary.std, 1)}"
    return text + _n(summary, rule)


def _n(summary: Summary, rule: RuleAudit) -> str:
    return "" if summary.n in (0, len(rule.runs)) else f" (n = {summary.n})"
