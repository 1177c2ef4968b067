"""The four questions of the audit: when each fires, and its answer.

D1 to D3 are asked of a run, D4 of a rule.

D3 compares the credit with chance at every layer 1 … L, by the cosine and by ρ.  Chance is what the rule scores when it
draws its matrices or networks again: the mean and the standard deviation s over n draws in the same snapshot.  If the
rule's own draw is one more of these, (value − mean)/(s·√(1 + 1/n)) follows Student's t with n − 1 degrees of freedom.
A measure is above chance where that exceeds the quantile whose probability is that of `deviations` standard deviations
of a normal variable (3: one in 741), and below chance likewise.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Literal, NamedTuple

from sonde.core.formatting import GRADIENT_VANISHED, Thresholds, number, number_range, signed
from sonde.core.seed_statistics import (
    Interval,
    Summary,
    cannot_decide,
    holm,
    paired,
    possible_part,
    seeds_to_decide,
    summarise,
    t_chance,
    t_interval,
    t_quantile,
)
from sonde.metrics import TRAINED
from sonde.metrics.rows import Reading, undefined
from sonde.store.readings import not_measured
from sonde.store.run import Run

_RESOLUTION, _CEILING = "grad_resolution", "rho/bp"


class Look(NamedTuple):
    """The answer to a question at one epoch of a run."""

    epoch: int
    value: float  # NaN where undefined
    fired: bool | None  # None: it cannot be answered, and `reason` says why
    reason: str | None = None
    layers: tuple[int, ...] = ()  # blocks or layers at which it fired
    note: str | None = None  # what the answer rests on
    beside: float = math.nan  # a second quantity; D1: ‖h_L‖ ÷ init, D2: the least ρ of BP's gradient


@dataclass(frozen=True, kw_only=True)
class AuditAnswer:
    """The result of the last look, which decides, and all looks in the order of epochs, which tell since when."""

    epoch: int | None = None  # None: there is no look, and `reason` says why
    value: float = math.nan
    fired: bool | None = None
    reason: str | None = None
    layers: tuple[int, ...] = ()
    note: str | None = None
    beside: float = math.nan
    looks: tuple[Look, ...] = ()
    asked: bool = True  # False: the question does not arise, and `reason` says why

    @property
    def first_fired(self) -> int | None:
        """The first epoch at which it fired, whether or not it still does."""
        return next((look.epoch for look in self.looks if look.fired), None)

    @property
    def since(self) -> int | None:
        """The epoch since which every defined look fired; None where the last did not fire."""
        if not self.fired:
            return None
        since = None
        for look in reversed(self.looks):
            if look.fired is False:
                break
            since = look.epoch if look.fired else since
        return since

    def at(self, epoch: int) -> Look | None:
        """The look at an epoch; None where there was none."""
        return next((look for look in self.looks if look.epoch == epoch), None)


def _answer(looks: Sequence[Look], missing: str) -> AuditAnswer:
    """An answer from looks, or from what is missing if there are none."""
    return AuditAnswer(**looks[-1]._asdict(), looks=tuple(looks)) if looks else AuditAnswer(reason=missing)


OVER_ALL_BLOCKS = "over all blocks"  # a note of D1


def ask_scale(run: Run, thresholds: Thresholds) -> AuditAnswer:
    """D1: the growth of ‖h‖ over the block that grows it most, over all blocks, and of ‖h_L‖ since init.

    A block without a value leaves the question open unless something else fires it.  A LayerNorm on top hides the
    growth of ‖h_L‖ from the loss.  Growth up to ‖h_0‖ does not count: a vanished signal comes back.
    """
    blocks, states = range(run.depth), range(run.depth + 1)
    at_init = run.across("hidden_norm", 0, states)
    vanished = at_init[-1] < GRADIENT_VANISHED * at_init[0]
    looks = []
    for epoch in run.epochs_of("growth", blocks):
        values, norms = run.across("growth", epoch, blocks), run.across("hidden_norm", epoch, states)
        finite = [value for value in values if value == value] if math.isnan(sum(values)) else values
        largest = max(finite, default=math.nan)
        top = norms[-1] / at_init[-1] if at_init[-1] > 0 else math.nan
        over = tuple(b for b, value in enumerate(values) if value > thresholds.growth and not norms[b + 1] < norms[0])
        since = top > thresholds.stream and not vanished
        deep = norms[-1] > thresholds.growth * norms[0] > 0
        note = OVER_ALL_BLOCKS if deep and not over and not since else None
        if over or since or deep:
            looks.append(Look(epoch=epoch, value=largest, fired=True, layers=over, beside=top, note=note))
        elif len(finite) < len(values):
            block = next(block for block, value in enumerate(values) if math.isnan(value))
            gap = f"block {block}: {run.at('growth', epoch, block).reason}"
            looks.append(Look(epoch=epoch, value=math.nan, fired=None, reason=gap, beside=top))
        else:
            looks.append(Look(epoch=epoch, value=largest, fired=False, beside=top))
    return _answer(looks, "growth was not measured")


def ask_gradient(run: Run, thresholds: Thresholds) -> AuditAnswer:
    """D2: the least cosine, over layers, of the BP gradient in training's precision with that in float64.

    ρ of BP's gradient in float64, the ceiling, is the second quantity.  Runs of earlier versions have only the ceiling:
    it decides for them, and the cosine is undefined.
    """
    layers = range(run.depth + 1)
    resolved = run.epochs_of(_RESOLUTION, layers)
    epochs = sorted({*resolved, *run.epochs_of(_CEILING, layers)})
    return _answer(
        [_resolution(run, epoch, layers, thresholds) for epoch in epochs],
        f"neither {_RESOLUTION} nor {_CEILING} was measured: train the run again",
    )


def _resolution(run: Run, epoch: int, layers: range, thresholds: Thresholds) -> Look:
    limits = {_RESOLUTION: thresholds.resolution, _CEILING: thresholds.ceiling}
    values = {metric: run.across(metric, epoch, layers) for metric in limits if epoch in run.epochs_of(metric, layers)}
    least = {metric: min((v for v in found if v == v), default=math.nan) for metric, found in values.items()}
    value, ceiling = least.get(_RESOLUTION, math.nan), least.get(_CEILING, math.nan)
    low = tuple(layer for layer in layers if any(found[layer] < limits[metric] for metric, found in values.items()))
    if low:
        return Look(epoch=epoch, value=value, fired=True, layers=low, beside=ceiling)
    gaps = ((metric, layer) for metric in values for layer in layers if math.isnan(values[metric][layer]))
    for metric, layer in gaps:
        why = f"{metric} at layer {layer}: {run.at(metric, epoch, layer).reason}"
        return Look(epoch=epoch, value=math.nan, fired=None, reason=why, beside=ceiling)
    why_none = None if _RESOLUTION in values else not_measured(_RESOLUTION, epoch)
    return Look(epoch=epoch, value=value, fired=False, reason=why_none, beside=ceiling)


def since_init(run: Run, epoch: int, metric: str) -> Reading:
    """A metric at layer L relative to its value at init, or why there is none."""
    here, init = (run.at(metric, at, run.depth) for at in (epoch, 0))
    reason = here.reason or init.reason
    if reason is None and not init.value > 0:
        reason = f"{metric} is zero at init"
    if reason is not None:
        return undefined(metric, reason, layer=run.depth)
    return Reading(metric=metric, value=here.value / init.value, layer=run.depth, samples=here.samples)


def scale_free(run: Run, epoch: int) -> Reading:
    """‖g_L‖·‖h_L‖/‖e‖ relative to init, from medians over samples.  A LayerNorm on top does not change it."""
    per_error, top = (since_init(run, epoch, metric) for metric in ("grad_per_error", "hidden_norm"))
    if reason := per_error.reason or top.reason:
        return undefined("grad_per_error", reason, layer=run.depth)
    value = per_error.value * top.value
    return Reading(metric="grad_per_error", value=value, layer=run.depth, samples=per_error.samples)


_MOST_POINTS = 100.0  # the largest difference of two accuracies
MarginOutcome = Literal["helps", "hurts", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Margin:
    """Test accuracy over frozen blocks of the same recipe and seed, in points, at the last epoch."""

    asked: bool = True  # False: the question does not arise, and `reason` says why
    outcome: MarginOutcome | None = None  # None: undefined, and `reason` says why
    reason: str | None = None  # why it is undecided or undefined
    by_seed: dict[int, float]
    without: dict[int, str]  # seeds that have no difference, and why
    points: Summary
    interval: Interval
    errors_removed: float = math.nan  # share of the errors of frozen blocks, over the same seeds; negative: added
    chance: float = math.nan  # p value of the two-sided t test of this rule alone
    adjusted: float = math.nan  # the same after Holm's correction
    tests: int = 1  # number of tests that are corrected together
    seeds_needed: int | None = None  # for a power of 80 %, if mean and spread are the true ones

    @property
    def text(self) -> str:
        """Mean and interval, "+1.64 [+1.09, +2.19]"; "undecided" in place of the interval where seeds are too few."""
        if not self.points.n:
            return "undefined"
        mean, n = signed(self.points.mean), self.points.n
        if self.interval.reason:
            return mean
        if self.outcome == "undecided" and (n == 2 or cannot_decide(self.interval, n, _MOST_POINTS)):
            return f"{mean} undecided"
        low, high = possible_part(self.interval, _MOST_POINTS)
        return f"{mean} [{signed(low)}, {signed(high)}]"


def margin_over_frozen(
    rule: str, runs: Sequence[Run], frozen: Mapping[int, Run], why_none: str, confidence: float
) -> Margin:
    """D4: the paired t interval of the accuracy over frozen blocks.  Above 0: helps; below: hurts; else undecided."""
    own, why = _accuracies({run.seed: run for run in runs})
    base, why_base = _accuracies(frozen)
    pairs = paired(own, base)
    points = {seed: round(100 * difference, 9) for seed, difference in pairs.differences.items()}
    without = {
        seed: why.get(seed) or (f"frozen baseline: {why_base[seed]}" if seed in why_base else reason)
        for seed, reason in pairs.without.items()
        if seed in own
    }
    interval = t_interval(points.values(), confidence)
    outcome: MarginOutcome | None = None
    reason: str | None = None
    if rule == "frozen":
        reason = "it is the baseline"
    elif not frozen:
        reason = next(iter(why.values()), why_none) if len(why) == len(own) > 0 else why_none
    elif not points:
        reason = next(iter(without.values()), "there is no run to pair")
    elif interval.low > 0:
        outcome = "helps"
    elif interval.high < 0:
        outcome = "hurts"
    else:
        outcome, reason = "undecided", interval.reason or _includes_zero(interval, len(points))
    over_seeds, chance = summarise(points.values(), reason or "no value is defined"), t_chance(points.values())
    return Margin(
        asked=rule != "frozen",
        outcome=outcome,
        reason=reason,
        by_seed=points,
        without=without,
        points=over_seeds,
        interval=interval,
        errors_removed=_errors_removed([own[seed] for seed in points], [base[seed] for seed in points]),
        chance=chance,
        adjusted=chance,
        seeds_needed=seeds_to_decide(over_seeds, confidence) if outcome == "undecided" else None,
    )


def _includes_zero(interval: Interval, n: int) -> str:
    words = f"the interval [{signed(interval.low)}, {signed(interval.high)}] includes 0"
    return cannot_decide(interval, n, _MOST_POINTS) or words


def corrected_margins(margins: Mapping[str, Margin], confidence: float) -> dict[str, Margin]:
    """The margins of one recipe after Holm's correction, because one of many rules helps or hurts by chance."""
    tested = {key: one.chance for key, one in margins.items() if one.outcome and math.isfinite(one.chance)}
    adjusted, level = holm(tested), (1 - confidence) / max(1, len(tested))
    found = dict(margins)
    for key, chance in adjusted.items():
        one = replace(margins[key], adjusted=chance, tests=len(tested))
        if one.outcome != "undecided" and chance >= 1 - confidence:
            why = f"n = {one.points.n} seeds are too few after Holm's correction for {len(tested)} rules"
            one = replace(one, outcome="undecided", reason=why)
        if one.outcome == "undecided":
            one = replace(one, seeds_needed=seeds_to_decide(one.points, 1 - level))
        found[key] = one
    return found


def _accuracies(runs: Mapping[int, Run]) -> tuple[dict[int, float], dict[int, str]]:
    """Test accuracy at the last epoch by seed; and seed → why it is undefined."""
    readings = {seed: run.at("test_acc", run.epochs) for seed, run in runs.items()}
    values = {seed: reading.value for seed, reading in readings.items()}
    return values, {seed: reading.reason for seed, reading in readings.items() if reading.reason}


def _errors_removed(own: Sequence[float], base: Sequence[float]) -> float:
    errors = summarise(1 - value for value in base).mean
    return 1 - summarise(1 - value for value in own).mean / errors if errors > 0 else math.nan


CREDIT_MEASURES = {name: TRAINED[name].symbol for name in ("credit_cosine", "rho")}
_EXACT = 1e-9  # a smaller spread and difference means that the credit does not depend on the draw

ChanceSide = Literal["above", "at", "below", "given"]
"""Position relative to chance; `given`: the credit does not depend on what the rule draws, as FA's at the top."""


class CreditMeasure(NamedTuple):
    """One measure of the credit at one layer, and its null."""

    metric: str
    value: float
    null: float  # mean over draws
    null_std: float
    draws: int
    excess: float  # over the null, as Student's t; NaN where undefined
    side: ChanceSide | None  # None: undefined, and `reason` says why
    reason: str | None


class LayerCredit(NamedTuple):
    """The credit of one layer, by cosine and by ρ."""

    layer: int
    ceiling: float  # ρ of BP's own gradient
    cosine: CreditMeasure
    rho: CreditMeasure
    side: ChanceSide | Literal["disagree"] | None
    reason: str | None  # why `side` is None

    @property
    def barred(self) -> bool:
        """Whether BP's gradient is not a valid reference at this layer."""
        return (self.reason or "").startswith("not evidence")


def ask_credit(run: Run, thresholds: Thresholds) -> AuditAnswer:
    """D3: the smallest excess over the null; fires where a layer is not above it by both cosine and ρ.

    One such layer is enough.  A layer is not read where ρ of BP's gradient, the ceiling, is too low.
    """
    if run.rule == "frozen":
        return AuditAnswer(reason=f"no credit is assigned to layers {number_range(run.layers)}", asked=False)
    if run.rule == "bp":
        trivial = "its credit is the gradient itself"
        return _answer([Look(epoch=run.epochs, value=math.nan, fired=False, note=trivial)], "")
    epochs = {metric: run.epochs_of(metric, run.layers) for metric in CREDIT_MEASURES}
    both = sorted(set(epochs["credit_cosine"]) & set(epochs["rho"]))
    absent = [name for metric, name in CREDIT_MEASURES.items() if not epochs[metric]]
    missing = (
        f"{' and '.join(absent)} not measured at layers {number_range(run.layers)}"
        if absent
        else "cosine and ρ were never measured at one epoch"
    )
    return _answer([_look(epoch, credit_at_layers(run, epoch, thresholds)) for epoch in both], missing)


def credit_at_layers(run: Run, epoch: int, thresholds: Thresholds) -> list[LayerCredit]:
    """The credit of each layer 1 … L at one epoch."""
    names = ("rho/bp", *(f"{metric}{ending}" for metric in CREDIT_MEASURES for ending in ("", "/null")))
    found = zip(*(run.across(name, epoch, run.layers) for name in names), strict=True)
    return [_layer(run, epoch, layer, values, thresholds) for layer, values in zip(run.layers, found, strict=True)]


def _look(epoch: int, found: Sequence[LayerCredit]) -> Look:
    short = tuple(layer.layer for layer in found if layer.side in ("at", "below", "disagree"))
    open_ = next((layer for layer in found if layer.reason is not None), None)
    compared = [layer for layer in found if layer.side not in (None, "given")]
    least = min((m.excess for layer in compared for m in (layer.cosine, layer.rho)), default=math.nan)
    if short:
        return Look(epoch=epoch, value=least, fired=True, layers=short)
    if open_ is not None:
        return Look(epoch=epoch, value=math.nan, fired=None, reason=open_.reason)
    if not compared:
        why = "the credit does not depend on what the rule draws"
        return Look(epoch=epoch, value=math.nan, fired=False, note=why)
    return Look(epoch=epoch, value=least, fired=False)


def _layer(run: Run, epoch: int, layer: int, values: Sequence[float], thresholds: Thresholds) -> LayerCredit:
    ceiling, *measured = values
    cosine, rho = (
        _measure(run, metric, epoch, layer, measured[2 * place : 2 * place + 2], thresholds)
        for place, metric in enumerate(CREDIT_MEASURES)
    )
    gap = next((m for m in (cosine, rho) if m.reason is not None), None)
    side: ChanceSide | Literal["disagree"] | None = None
    reason: str | None = None
    of_bp = "not evidence: ρ of BP's own gradient is"
    if math.isnan(ceiling):
        reason = f"{of_bp} undefined at layer {layer} ({run.at('rho/bp', epoch, layer).reason})"
    elif ceiling < thresholds.ceiling:
        reason = f"{of_bp} {number(ceiling)} at layer {layer}, below {thresholds.ceiling:g}"
    elif gap is not None:
        reason = f"{CREDIT_MEASURES[gap.metric]} at layer {layer}: {gap.reason}"
    else:
        side = cosine.side if cosine.side == rho.side else "disagree"
    return LayerCredit(layer, ceiling, cosine, rho, side, reason)


def _measure(
    run: Run, metric: str, epoch: int, layer: int, values: Sequence[float], thresholds: Thresholds
) -> CreditMeasure:
    (own, null), std = values, run.at(f"{metric}/null_std", epoch, layer)
    draws, above, excess = std.samples, own - null, math.nan
    side: ChanceSide | None = None
    missing = [name for name, value in ((metric, own), (f"{metric}/null", null)) if math.isnan(value)]
    reason = run.at(missing[0], epoch, layer).reason if missing else None
    if reason is None and std.reason is not None:
        drawn = run.epochs_of(f"{metric}/null_std", (layer,))
        old = "its null is of an older version: train the run again"
        reason = std.reason if drawn else old
    if reason is None and draws < 2:
        reason = f"{metric}/null_std does not say from how many draws"
    if reason is None and std.value <= _EXACT and abs(above) <= _EXACT:
        excess, side = 0.0, "given"
    elif reason is None:
        excess = above / (std.value * math.sqrt(1 + 1 / draws)) if std.value > 0 else math.copysign(math.inf, above)
        limit = critical_t(thresholds.deviations, draws)
        side = "above" if excess > limit else "below" if excess < -limit else "at"
        if math.isnan(excess) or not math.isfinite(above):
            excess, side, reason = math.nan, None, "overflow: the excess over the null is infinite"
    return CreditMeasure(metric, own, null, std.value, draws, excess, side, reason)


@lru_cache
def critical_t(deviations: float, draws: int) -> float:
    """The quantile of Student's t with the probability of this many standard deviations of a normal variable."""
    return -t_quantile(NormalDist().cdf(-deviations), draws - 1)
