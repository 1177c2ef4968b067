"""The audit as text: a verdict and a sentence for each rule, and a table with footnotes for each recipe.

Numbers are means over all seeds of the rule; n is stated where it is less.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from sonde.analysis.audit import (
    CONTROLLED,
    NUDGE_METRIC,
    QUESTIONS,
    STREAM_LABEL,
    Controlled,
    RecipeAudit,
    RuleAudit,
    Tally,
)
from sonde.analysis.questions import CREDIT_MEASURES, AuditAnswer, LayerCredit
from sonde.analysis.runs import several_versions
from sonde.core.formatting import Thresholds, accuracy, number, number_range, percent, signed
from sonde.core.seed_statistics import POWER, Summary
from sonde.metrics import TRAINED

_CHANCE_WORDS = {"above": "above chance", "at": "at chance", "below": "below chance"}


QUESTION_NAMES = {"D1": "scale", "D2": "gradient", "D3": "credit", "D4": "blocks"}
_FIRED_WORDS = {
    "D1": "states grow",
    "D2": "gradient not resolved",
    "D3": "credit at chance",
    "D4": "blocks hurt",
}


def sentence(rule: RuleAudit) -> str:
    """Sentences on scale, BP gradient, credit and blocks; the first names rule and task."""
    asked = (*_scale(rule), *_gradient(rule), *_credit(rule)) if rule.runs else ()
    found = [one for one in (_diverged(rule), *asked, *_margin(rule), _left_out(rule)) if one]
    on = f" on {rule.task}" if rule.task else ""
    return f"{rule.label}{on}: {' '.join(f'{one[0].upper()}{one[1:]}.' for one in found)}"


def short_verdict(rule: RuleAudit) -> str:
    """What fired, in words; what is undefined or undecided is left to `verdict`."""
    return ", ".join(_fired(rule, _FIRED_WORDS)) or ("baseline" if rule.rule == "frozen" else "no finding")


def verdict(rule: RuleAudit) -> str:
    """The questions that fired, with the number of seeds, and those that are undefined or undecided."""
    fired = _fired(rule, {question: question for question in QUESTIONS} | {"D4": "D4 hurts"})
    open_ = [f"{question} {_open(tally)}" for question, tally in _tallies(rule).items() if tally.undefined]
    if rule.runs and rule.margin.asked and rule.margin.outcome not in ("helps", "hurts"):
        open_.append(f"D4 {rule.margin.outcome or 'undefined'}")
    if not fired and not open_:
        return "baseline" if rule.rule == "frozen" else "healthy"
    return "; ".join(part for part in (", ".join(fired) or "none fired", ", ".join(open_)) if part)


def _tallies(rule: RuleAudit) -> dict[str, Tally]:
    return {question: rule.tally(question) for question in QUESTIONS} if rule.runs else {}


def _fired(rule: RuleAudit, words: Mapping[str, str]) -> list[str]:
    """That it diverged, and the words of every question that fired, each with the number of seeds."""
    found = []
    if rule.diverged:
        when = _epochs(one.epoch for one in rule.diverged)
        found.append(f"diverged at {when}{_of(len(rule.diverged), len(rule.runs) + len(rule.diverged))}")
    found += [words[name] + _of(len(tally.fired), tally.n) for name, tally in _tallies(rule).items() if tally.fired]
    return found + [words["D4"]] * (rule.margin.outcome == "hurts")


def _open(tally: Tally) -> str:
    word = "not evidence" if (tally.reason or "").startswith("not evidence") else "undefined"
    return word + _of(len(tally.undefined), tally.n)


def _of(some: int, n: int) -> str:
    return "" if some == n else f" ({some} of {n})"


def _diverged(rule: RuleAudit) -> str:
    if not rule.diverged:
        return ""
    n, seeds = len(rule.runs) + len(rule.diverged), [one.seed for one in rule.diverged]
    rest = "; the other numbers are without them" if rule.runs else ""
    return (
        f"diverged at {_epochs(one.epoch for one in rule.diverged)} in {len(seeds)} of {n} "
        f"seed{'s' * (n > 1)} ({', '.join(map(str, seeds))}){rest}"
    )


def _scale(rule: RuleAudit) -> list[str]:
    tally, value, limits = rule.tally("D1"), rule.value("D1"), rule.thresholds
    if not value.n:
        return [f"the growth of ‖h‖ is undefined ({tally.reason})"]
    text = f"‖h‖ grows up to {number(value.mean)}× over a block{said_n(value, rule)}"
    top = rule.stream()
    if top.n:
        text += f", and ‖h_L‖ is {number(top.mean)}× its value at init{said_n(top, rule)}"
    if tally.fired:
        where = f"{_from(tally.fired.values())}{_share(tally, tally.fired)}: {_grown(tally, limits)}"
        return [text, f"D1 fires {where}", _hidden(rule)]
    once = [a.first_fired for a in tally.clear.values() if a.first_fired is not None]
    if not once:
        return [text]
    looks = [a.at(epoch) for a in tally.clear.values() for epoch in once]
    passed = [f"{limits.growth:g}× over a block"] * any(look and look.layers for look in looks)
    passed += [f"{limits.growth:g}× over all blocks"] * any(look and look.note for look in looks)
    passed += [f"{limits.stream:g}× init"] * any(look and look.beside > limits.stream for look in looks)
    return [text, f"it was more than {' and '.join(passed)} at epoch {min(once)}"]


def _grown(tally: Tally, limits: Thresholds) -> str:
    """Which limits of D1 were exceeded in the seeds in which it fired."""
    blocks = sorted({block for answer in tally.fired.values() for block in answer.layers})
    where = f"block{'s' * (len(blocks) > 1)} {number_range(blocks)}"
    parts = [f"more than {limits.growth:g}× over {where}"] if blocks else []
    if any(answer.note for answer in tally.fired.values()):
        parts.append(f"more than {limits.growth:g}× over all blocks")
    if any(answer.beside > limits.stream for answer in tally.fired.values()):
        parts.append(f"‖h_L‖ more than {limits.stream:g}× init")
    return " and ".join(parts)


def _hidden(rule: RuleAudit) -> str:
    """A sentence where normalisation hides the growth of h_L from the loss: then g_L falls as ‖h_L‖ grows."""
    free, top = rule.scale_free(), rule.stream()
    if not free.n or not top.mean > rule.thresholds.stream or free.mean > math.sqrt(top.mean):
        return ""
    return f"normalisation after h_L hides the growth from the loss{_free(rule)}"


def _gradient(rule: RuleAudit) -> list[str]:
    tally, value, ceiling = rule.tally("D2"), rule.value("D2"), rule.beside("D2")
    if not (tally.fired or tally.clear):
        return [f"whether the BP gradient is resolved is undefined ({tally.reason})"]
    parts = []
    if value.n:
        parts.append(f"its least cosine with the float64 gradient is {number(value.mean)}{said_n(value, rule)}")
    if ceiling.n:
        parts.append(f"its least ρ in float64 is {number(ceiling.mean)}{said_n(ceiling, rule)}")
    said = " and ".join(parts)
    if tally.fired:
        layers = sorted({layer for answer in tally.fired.values() for layer in answer.layers})
        since = f"{_from(tally.fired.values())}{_share(tally, tally.fired)}"
        return [f"D2 fires {since}: the BP gradient is not resolved at {_layers(layers)} {number_range(layers)}", said]
    if value.n:
        return [f"the BP gradient is resolved: {said}"]
    free = "" if _hidden(rule) else _free(rule)  # stated once
    return ["whether training resolves the BP gradient was not measured", f"{said}{free}"]


def _free(rule: RuleAudit) -> str:
    free = rule.scale_free()
    if not free.n:
        return ""
    return f"; ‖g_L‖·‖h_L‖/‖e‖ is {number(free.mean)}× its value at init{said_n(free, rule)}"


def _credit(rule: RuleAudit) -> list[str]:
    if rule.rule == "bp":
        return ["its credit is the gradient itself"]
    if rule.rule == "frozen":
        return [rule.runs[0].answers["D3"].reason or ""]
    tally = rule.tally("D3")
    if not (tally.fired or tally.clear):
        return [f"whether the credit is better than chance is undefined ({tally.reason})"]
    answered = {one.run.seed: one.credits for one in rule.runs if one.run.seed not in tally.undefined}
    first, *others = _chance_clauses(answered)
    said = [f"the credit is {first}", *(f"it is {clause}" for clause in others), _numbers(rule)]
    if tally.fired:
        since = f"{_from(tally.fired.values())}{_share(tally, tally.fired)}"
        said.append(f"D3 fires {since}: the credit is not above chance at every layer")
    if tally.undefined:
        said.append(f"D3 is undefined{_share(tally, tally.undefined)} ({tally.reason})")
    return said


def _chance_clauses(answered: dict[int, list[LayerCredit]]) -> list[str]:
    """Layers above, at and below chance, those at which cosine and ρ disagree, and those that are undefined."""
    layers = [layer for credits in answered.values() for layer in credits]
    n = len(answered)

    def where(chosen: Iterable[int]) -> str:
        seeds = Counter(chosen)
        groups = {count: sorted(one for one in seeds if seeds[one] == count) for count in seeds.values()}
        said = [
            f"{_layers(group)} {number_range(group)}{'' if count == n else f' ({count} of {n} seeds)'}"
            for count, group in sorted(groups.items(), reverse=True)
        ]
        return " and ".join(said)

    clauses = [
        f"{words} at {where(layer.layer for layer in layers if layer.side == side)}"
        for side, words in _CHANCE_WORDS.items()
        if any(layer.side == side for layer in layers)
    ]
    given = [layer for layer in layers if layer.side == "given"]
    if given:
        exact = all(abs(layer.cosine.value - 1) <= 1e-9 for layer in given)
        what = "the exact gradient" if exact else "independent of what the rule draws"
        clauses.append(f"{what} at {where(layer.layer for layer in given)}")
    for cosine, rho in dict.fromkeys((c.cosine.side, c.rho.side) for c in layers if c.side == "disagree"):
        at = where(c.layer for c in layers if (c.cosine.side, c.rho.side) == (cosine, rho))
        sides = (_CHANCE_WORDS.get(side or "", str(side)) for side in (cosine, rho))
        clauses.append("{} by cosine but {} by ρ at {}".format(*sides, at))
    unread = [layer for layer in layers if layer.side is None]
    if unread:
        what = "not evidence" if all(layer.barred for layer in unread) else "undefined"
        clauses.append(f"{what} at {where(layer.layer for layer in unread)}")
    return clauses


def _numbers(rule: RuleAudit) -> str:
    """Means over layers 1 … L−1 beside their nulls, as in the table."""
    parts = []
    for metric, name in CREDIT_MEASURES.items():
        mean = rule.measures[metric]
        if mean.value.n and mean.null.n:
            chance = f"{number(mean.null.mean, 1)} by chance"
            parts.append(f"{name} {number(mean.value.mean)}{said_n(mean.value, rule)} ({chance})")
    layers = tuple(range(1, rule.depth))
    return f"mean over {_layers(layers)} {number_range(layers)}: {', '.join(parts)}" if parts else ""


def _margin(rule: RuleAudit) -> list[str]:
    margin = rule.margin
    if not margin.asked:
        return ["it is the baseline"]
    if not rule.runs:
        return []
    if margin.outcome is None:
        return [f"whether the blocks help is undefined ({margin.reason})"]
    of = f"points of test accuracy over frozen blocks, n = {margin.points.n}"
    if margin.outcome == "undecided":
        said = f"{signed(margin.points.mean)} {of} ({margin.reason})"
        return [f"whether the blocks help is undecided: {said}", _needed(rule)]
    share = margin.errors_removed
    removed = ""
    if not math.isnan(share):
        words = "of the errors of frozen blocks removed" if share >= 0 else "more errors than frozen blocks"
        removed = f"; {percent(100 * abs(share))} {words}"
    return [f"the blocks {'help' if margin.outcome == 'helps' else 'hurt'}: {margin.text} {of}{removed}"]


def _needed(rule: RuleAudit) -> str:
    margin = rule.margin
    if margin.points.n < 2 or margin.interval.reason is not None:
        return ""
    if margin.seeds_needed is None:
        return "with the same mean and spread, no number of seeds would be enough"
    return f"with the same mean and spread, {margin.seeds_needed} seeds would be enough (power {POWER:.0%})"


def _left_out(rule: RuleAudit) -> str:
    n = len(rule.left_out)
    return f"{n} more run{'s' if n > 1 else ''} did not complete" if n else ""


def said_n(summary: Summary, rule: RuleAudit) -> str:
    """n, if it differs from the number of runs of the rule."""
    return "" if summary.n == len(rule.runs) else f" (n = {summary.n})"


def _from(answers: Iterable[AuditAnswer]) -> str:
    epochs = sorted({answer.since for answer in answers if answer.since is not None})
    return "from init on" if epochs == [0] else f"from {_epochs(epochs)}"


def _epochs(epochs: Iterable[int]) -> str:
    ordered = sorted(set(epochs))
    return f"epoch {ordered[0]}" if len(ordered) == 1 else f"epochs {ordered[0]}–{ordered[-1]}"


def _share(tally: Tally, seeds: Collection[int]) -> str:
    if len(seeds) == tally.n:
        return ""
    return f" in {len(seeds)} of {tally.n} seeds ({', '.join(map(str, sorted(seeds)))})"


def _layers(layers: Sequence[int]) -> str:
    return "layer" if len(layers) == 1 else "layers"


_BARRED = "†"
"""Marks a cosine that is not evidence, because BP's own gradient does not predict the loss."""

AUDIT_SPREAD = "± is the sample standard deviation over seeds (ddof 1)."
_RESOLUTION = "cos(g, g in float64)"
_GROWTH = "largest growth over a block"
_CREDIT = {name if name == NUDGE_METRIC else TRAINED[name].symbol: name for name in CONTROLLED}


def audit_columns(recipe: RecipeAudit) -> dict[str, str]:
    """Headings, each left or right; those of averages name the layers."""
    layers = number_range(range(1, recipe.rules[0].depth))
    credit = (f"{name}, layers {layers} (null, BP)" for name in _CREDIT)
    headings = ("test acc.", _GROWTH, STREAM_LABEL, _RESOLUTION, *credit, "points over frozen")
    return {"rule": "left", "n": "right", **dict.fromkeys(headings, "right"), "verdict": "left"}


def audit_rows(recipe: RecipeAudit) -> list[list[str]]:
    """One row for each rule."""
    return [_line(rule) for rule in recipe.rules]


def audit_footnotes(recipe: RecipeAudit) -> list[str]:
    """Notes on averages, undefined values, cosines that are not evidence, and the code that made the runs."""
    confidence = recipe.rules[0].thresholds.confidence
    notes = [
        "cosine, ρ, nudge: the mean of the rule's credit over the named layers (null, BP's gradient). The null is the "
        "same rule with other random matrices; for the nudge and for rules without random matrices, a random vector.",
        f"{_RESOLUTION}: cosine of the BP gradient in training's precision with the float64 gradient, at the layer "
        "where it is least.",
        f"points over frozen: paired by seed [{100 * confidence:g} % t interval over seeds, uncorrected]. The verdict "
        "helps or hurts uses Holm's correction for the rules of the table.",
    ]
    for rule in recipe.rules:
        if not rule.runs:
            notes.append(f"{rule.label}: no run is complete, so there is no mean")
            continue
        for why, names in _undefined(rule).items():
            notes.append(f"{rule.label}: {', '.join(names)} undefined: {why}")
        if rule.margin.asked and rule.margin.points.n:
            for seed, why in rule.margin.without.items():
                notes.append(f"{rule.label}: seed {seed} is not paired with frozen: {why}")
        if barred := _barred(rule):
            notes.append(f"{rule.label}: {_BARRED} {barred[0]}")
        draws = sorted({m.draws for run in rule.runs for layer in run.credits for m in (layer.cosine, layer.rho)})
        if draws and draws[-1] > 1:
            notes.append(f"{rule.label}: the null has {number_range(draws)} draws for each snapshot")
    made = several_versions(recipe.made_with)
    return [*notes, made] if made else notes


def _barred(rule: RuleAudit) -> list[str | None]:
    """Reasons why the cosine is not evidence, for each layer and seed at which it is not."""
    return [layer.reason for run in rule.runs for layer in run.credits if layer.barred]


def _undefined(rule: RuleAudit) -> dict[str, list[str]]:
    """Reason → columns that are undefined for that reason."""
    means = {name: rule.measures[metric] for name, metric in _CREDIT.items()}
    summaries = {
        TRAINED["test_acc"].label: rule.scalar("test_acc"),
        _GROWTH: rule.value("D1"),
        STREAM_LABEL: rule.stream(),
        _RESOLUTION: rule.value("D2"),
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
        f"{cosine} {_BARRED}" if _barred(rule) else cosine,
        rho,
        nudge,
        "baseline" if rule.rule == "frozen" else rule.margin.text + _n(rule.margin.points, rule),
        verdict(rule),
    ]


def _controlled(mean: Controlled, rule: RuleAudit) -> str:
    if not (mean.value.n or mean.null.n or mean.ceiling.n):
        return "undefined"
    return f"{_spread(mean.value, rule)} ({number(mean.null.mean, 1)}, {number(mean.ceiling.mean)})"


def _spread(summary: Summary, rule: RuleAudit) -> str:
    """mean ± sample standard deviation over seeds; n where it differs from that of the row."""
    deviation = "" if math.isnan(summary.std) else f" ± {number(summary.std, 1)}"
    return number(summary.mean) + deviation + _n(summary, rule)


def _n(summary: Summary, rule: RuleAudit) -> str:
    return said_n(summary, rule) if summary.n else ""
