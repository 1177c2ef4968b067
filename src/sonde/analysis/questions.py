"""Three of the four questions, each with its answer: D1 and D2 of a run, D4 of a rule; D3 is `credit_question.py`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from sonde.analysis.thresholds import Thresholds
from sonde.core.seed_statistics import (
    Interval,
    Summary,
    holm,
    paired,
    seeds_to_decide,
    summarise,
    t_chance,
    t_interval,
)
from sonde.metrics.rows import Reading, undefined
from sonde.store.readings import not_measured
from sonde.store.run import Run

RESOLUTION, CEILING = "grad_resolution", "rho/bp"


class Look(NamedTuple):
    """A question asked of a run at one epoch."""

    epoch: int
    value: float  # NaN where undefined
    fired: bool | None  # None: it cannot be answered, and `reason` says why
    reason: str | None = None
    layers: tuple[int, ...] = ()  # the blocks or layers at which it fired
    note: str | None = None  # what the answer rests on
    beside: float = math.nan  # a second quantity: of D1 ‖h_L‖ ÷ init, of D2 the least ρ of BP's gradient


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the last look found, which decides, and all looks in the order of epochs, which say since when."""

    epoch: int | None = None  # None: nobody could look, and `reason` says why
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
        """The epoch from which it fired whenever it could be answered, up to the end; None where it does not."""
        if not self.fired:
            return None
        since = None
        for look in reversed(self.looks):
            if look.fired is False:
                break
            since = look.epoch if look.fired else since
        return since

    def at(self, epoch: int) -> Look | None:
        return next((look for look in self.looks if look.epoch == epoch), None)


def answer(looks: Sequence[Look], missing: str) -> Answer:
    """The looks, or what is missing when there are none."""
    return Answer(**looks[-1]._asdict(), looks=tuple(looks)) if looks else Answer(reason=missing)


def scale(run: Run, thresholds: Thresholds) -> Answer:
    """D1: the growth of ‖h‖ over the block that grows it most, and of ‖h_L‖ since init.

    A block without a value leaves the question open unless something else fires it.  A LayerNorm on top hides the
    growth of ‖h_L‖ from the loss.
    """
    blocks, last = range(run.depth), (run.depth,)
    (init,) = run.across("hidden_norm", 0, last)
    looks = []
    for epoch in run.epochs_of("growth", blocks):
        values = run.across("growth", epoch, blocks)
        finite = [value for value in values if value == value] if math.isnan(sum(values)) else values
        largest = max(finite, default=math.nan)
        top = run.across("hidden_norm", epoch, last)[0] / init if init > 0 else math.nan
        if largest > thresholds.growth or top > thresholds.stream:
            over = tuple(block for block, value in enumerate(values) if value > thresholds.growth)
            looks.append(Look(epoch=epoch, value=largest, fired=True, layers=over, beside=top))
        elif len(finite) < len(values):
            block = next(block for block, value in enumerate(values) if math.isnan(value))
            gap = f"block {block}: {run.at('growth', epoch, block).reason}"
            looks.append(Look(epoch=epoch, value=math.nan, fired=None, reason=gap, beside=top))
        else:
            looks.append(Look(epoch=epoch, value=largest, fired=False, beside=top))
    return answer(looks, "growth was not measured")


def gradient(run: Run, thresholds: Thresholds) -> Answer:
    """D2: the least cosine, over layers, of the BP gradient in training's precision with that in float64.

    Beside it ρ of BP's gradient in float64, the ceiling.  Runs of earlier versions have the ceiling alone: they are
    judged by it, and the cosine stays undefined.
    """
    layers = range(run.depth + 1)
    resolved = run.epochs_of(RESOLUTION, layers)
    epochs = sorted({*resolved, *run.epochs_of(CEILING, layers)})
    return answer(
        [_resolution(run, epoch, layers, thresholds) for epoch in epochs],
        f"neither {RESOLUTION} nor {CEILING} was measured: train it anew",
    )


def _resolution(run: Run, epoch: int, layers: range, thresholds: Thresholds) -> Look:
    limits = {RESOLUTION: thresholds.resolution, CEILING: thresholds.ceiling}
    values = {metric: run.across(metric, epoch, layers) for metric in limits if epoch in run.epochs_of(metric, layers)}
    least = {metric: min((v for v in found if v == v), default=math.nan) for metric, found in values.items()}
    value, ceiling = least.get(RESOLUTION, math.nan), least.get(CEILING, math.nan)
    low = tuple(layer for layer in layers if any(found[layer] < limits[metric] for metric, found in values.items()))
    if low:
        return Look(epoch=epoch, value=value, fired=True, layers=low, beside=ceiling)
    gaps = ((metric, layer) for metric in values for layer in layers if math.isnan(values[metric][layer]))
    for metric, layer in gaps:
        why = f"{metric} at layer {layer}: {run.at(metric, epoch, layer).reason}"
        return Look(epoch=epoch, value=math.nan, fired=None, reason=why, beside=ceiling)
    why_none = None if RESOLUTION in values else not_measured(RESOLUTION, epoch)
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
    """‖g_L‖·‖h_L‖/‖e‖ relative to init, of medians over samples: what remains when LayerNorm divides g_L by ‖h_L‖."""
    per_error, top = (since_init(run, epoch, metric) for metric in ("grad_per_error", "hidden_norm"))
    if reason := per_error.reason or top.reason:
        return undefined("grad_per_error", reason, layer=run.depth)
    value = per_error.value * top.value
    return Reading(metric="grad_per_error", value=value, layer=run.depth, samples=per_error.samples)


Outcome = Literal["helps", "hurts", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Margin:
    """Test accuracy over frozen blocks of the same recipe and seed, in points, at the last epoch."""

    asked: bool = True  # False: the question does not arise, and `reason` says why
    outcome: Outcome | None = None  # None: there is nothing to judge, and `reason` says why
    reason: str | None = None  # why it is undecided or undefined
    by_seed: dict[int, float]
    without: dict[int, str]  # seeds that have no difference, and why
    points: Summary
    interval: Interval
    errors_removed: float = math.nan  # the share of frozen's errors, over the same seeds; negative: added
    chance: float = math.nan  # of a mean this far from 0, two-sided, by the t test of this rule alone
    adjusted: float = math.nan  # the same after Holm's correction
    tests: int = 1  # of the recipe, which are corrected together
    seeds_needed: int | None = None  # for a power of 80 %, were mean and spread the true ones


def margin(
    rule: str,
    runs: Sequence[Run],
    frozen: Mapping[int, Run],
    why_none: str,
    confidence: float,
) -> Margin:
    """D4: the paired t interval of accuracy − frozen's: it helps above 0, hurts below, and is undecided across it."""
    own, why = _accuracies({run.seed: run for run in runs})
    base, why_base = _accuracies(frozen)
    pairs = paired(own, base)
    points = {seed: round(100 * difference, 9) for seed, difference in pairs.differences.items()}
    without = {
        seed: why.get(seed) or (f"frozen baseline: {why_base[seed]}" if seed in why_base else reason)
        for seed, reason in pairs.without.items()
        if seed in own
    }
    over_seeds, interval = summarise(points.values()), t_interval(points.values(), confidence)

    def found(outcome: Outcome | None, reason: str | None = None, *, asked: bool = True) -> Margin:
        return Margin(
            asked=asked,
            outcome=outcome,
            reason=reason,
            by_seed=points,
            without=without,
            points=summarise(points.values(), reason or "no value is defined"),
            interval=interval,
            errors_removed=_errors_removed([own[seed] for seed in points], [base[seed] for seed in points]),
            chance=t_chance(points.values()),
            adjusted=t_chance(points.values()),
            seeds_needed=seeds_to_decide(over_seeds, confidence) if outcome == "undecided" else None,
        )

    if rule == "frozen":
        return found(None, "it is the baseline", asked=False)
    if not frozen:
        return found(None, next(iter(why.values()), why_none) if len(why) == len(own) > 0 else why_none)
    if not points:
        return found(None, next(iter(without.values()), "there is no run to pair"))
    if interval.reason is not None:
        return found("undecided", interval.reason)
    if interval.low > 0:
        return found("helps")
    if interval.high < 0:
        return found("hurts")
    return found("undecided", "the interval holds 0")


def corrected(margins: Mapping[str, Margin], confidence: float) -> dict[str, Margin]:
    """The margins of one recipe by Holm's correction: of many rules one helps or hurts by chance."""
    tested = {key: one.chance for key, one in margins.items() if one.outcome and math.isfinite(one.chance)}
    adjusted, level = holm(tested), (1 - confidence) / max(1, len(tested))
    found = dict(margins)
    for key, chance in adjusted.items():
        one = replace(margins[key], adjusted=chance, tests=len(tested))
        if one.outcome != "undecided" and chance >= 1 - confidence:
            why = f"the interval excludes 0, but not after Holm's correction for {len(tested)} rules"
            one = replace(one, outcome="undecided", reason=why)
        if one.outcome == "undecided":
            one = replace(one, seeds_needed=seeds_to_decide(one.points, 1 - level))
        found[key] = one
    return found


def _accuracies(runs: Mapping[int, Run]) -> tuple[dict[int, float], dict[int, str]]:
    """Test accuracy at the last epoch by seed, and why it is undefined where it is."""
    readings = {seed: run.at("test_acc", run.epochs) for seed, run in runs.items()}
    values = {seed: reading.value for seed, reading in readings.items()}
    return values, {seed: reading.reason for seed, reading in readings.items() if reading.reason}


def _errors_removed(own: Sequence[float], base: Sequence[float]) -> float:
    errors = summarise(1 - value for value in base).mean
    return 1 - summarise(1 - value for value in own).mean / errors if errors > 0 else math.nan
