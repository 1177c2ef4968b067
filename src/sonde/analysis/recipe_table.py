"""The audit of a recipe as a table: one line per rule, every mean with its spread, undefined said as such."""

import math

from sonde.analysis.audit import CONTROLLED, NUDGE, Controlled, RecipeAudit, RuleAudit
from sonde.analysis.credit_question import span
from sonde.analysis.runs import several_versions
from sonde.analysis.verdict import points, said_n, verdict
from sonde.core.formatting import accuracy, number
from sonde.core.seed_statistics import Summary
from sonde.metrics import TRAINED

BARRED = "†"
"""Marks a cosine that is not evidence because BP's own gradient does not foretell the loss."""

SPREAD = "± is the sample standard deviation over seeds (ddof 1)."
STREAM = "‖h_L‖ ÷ init"
RESOLUTION = "cos(g, g in float64)"
GROWTH = "largest growth over a block"
CREDIT = {name if name == NUDGE else TRAINED[name].symbol: name for name in CONTROLLED}


def columns(recipe: RecipeAudit) -> dict[str, str]:
    """Headings, each left or right; averages over layers name them."""
    layers = span(range(1, recipe.rules[0].depth))
    credit = (f"{name}, layers {layers} (null, BP)" for name in CREDIT)
    headings = ("test acc.", GROWTH, STREAM, RESOLUTION, *credit, "points over frozen")
    return {"rule": "left", "n": "right", **dict.fromkeys(headings, "right"), "verdict": "left"}


def lines(recipe: RecipeAudit) -> list[list[str]]:
    """One line per rule."""
    return [_line(rule) for rule in recipe.rules]


def footnotes(recipe: RecipeAudit) -> list[str]:
    """What the averages are, why a value is undefined, which cosines are not evidence, what code made the runs."""
    confidence = recipe.rules[0].thresholds.confidence
    notes = [
        "cosine, ρ, nudge: the rule's mean over the layers named (by chance, of BP's gradient); chance is drawn "
        "as the rule, or the blind rule in its place, draws; for a rule that draws nothing and for the nudge it is a "
        "random vector",
        f"{RESOLUTION}: the BP gradient in the precision of training beside that in float64, at the layer where "
        "they agree least",
        f"points over frozen: paired by seed [{100 * confidence:g} % t interval over seeds, of each rule alone]; helps "
        "or hurts is said after Holm's correction for the rules of the table",
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
        if barred := _barred(rule):
            notes.append(f"{rule.label}: {BARRED} {barred[0]}")
        draws = sorted({m.draws for run in rule.runs for layer in run.credits for m in (layer.cosine, layer.rho)})
        if draws and draws[-1] > 1:
            notes.append(f"{rule.label}: chance was drawn {span(draws)} times a snapshot")
    made = several_versions(recipe.made_with)
    return [*notes, made] if made else notes


def _barred(rule: RuleAudit) -> list[str | None]:
    """Why the rule's cosine is not evidence, for every layer and seed at which it is not."""
    return [layer.reason for run in rule.runs for layer in run.credits if layer.barred]


def _undefined(rule: RuleAudit) -> dict[str, list[str]]:
    """Reason → what is undefined for that reason."""
    means = {name: rule.measures[metric] for name, metric in CREDIT.items()}
    summaries = {
        TRAINED["test_acc"].label: rule.scalar("test_acc"),
        GROWTH: rule.value("D1"),
        STREAM: rule.stream(),
        RESOLUTION: rule.value("D2"),
        **{name: mean.value for name, mean in means.items()},
        **{f"{name} (null)": mean.null for name, mean in means.items() if mean.value.n},
        **{f"{name} (BP)": mean.ceiling for name, mean in means.items() if mean.value.n},
        **({} if rule.rule == "frozen" else {"points over frozen": rule.margin.points}),
    }
    no_credit = next((answer.reason for answer in rule.tally("D3").not_asked.values()), None)
    names_of: dict[str, list[str]] = {}
    for name, summary in summaries.items():
        if summary.reason is not None:
            reason = no_credit if no_credit and name in means else summary.reason
            names_of.setdefault(reason, []).append(name)
    return names_of


def _line(rule: RuleAudit) -> list[str]:
    cosine, rho, nudge = (_controlled(rule.measures[metric], rule) for metric in CONTROLLED)
    test = rule.scalar("test_acc")
    return [
        rule.label,
        str(len(rule.runs)),
        accuracy(test.mean, test.std) + _n(test, rule),
        _spread(rule.value("D1"), rule),
        _spread(rule.stream(), rule),
        _spread(rule.value("D2"), rule),
        f"{cosine} {BARRED}" if _barred(rule) else cosine,
        rho,
        nudge,
        "baseline" if rule.rule == "frozen" else points(rule) + _n(rule.margin.points, rule),
        verdict(rule),
    ]


def _controlled(mean: Controlled, rule: RuleAudit) -> str:
    if not (mean.value.n or mean.null.n or mean.ceiling.n):
        return "undefined"
    return f"{_spread(mean.value, rule)} ({number(mean.null.mean, 1)}, {number(mean.ceiling.mean)})"


def _spread(summary: Summary, rule: RuleAudit) -> str:
    """mean ± sample standard deviation over seeds; n where it is not that of the line."""
    deviation = "" if math.isnan(summary.std) else f" ± {number(summary.std, 1)}"
    return number(summary.mean) + deviation + _n(summary, rule)


def _n(summary: Summary, rule: RuleAudit) -> str:
    return said_n(summary, rule) if summary.n else ""
