"""Three of the four questions, each with its answer: D1 and D2 of a run, D4 of a rule; D3 is `credit_question.py`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sonde.audit.thresholds import Thresholds
from sonde.runs.readings import MeasuredRun
from sonde.spreads import Interval, Summary, paired, seeds_to_decide, summarise, t_interval


class Look(NamedTuple):
    """A question asked of a run at one epoch."""

    epoch: int
    value: float  # NaN where undefined
    fired: bool | None  # None: it cannot be answered, and `reason` says why
    reason: str | None = None
    layers: tuple[int, ...] = ()  # the blocks or layers at which it fired
    note: str | None = None  # what the answer rests on


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the last look found, which decides, and all looks in the order of epochs, which say since when."""

    epoch: int | None = None  # None: nobody could look, and `reason` says why
    value: float = math.nan
    fired: bool | None = None
    reason: str | None = None
    layers: tuple[int, ...] = ()
    note: str | None = None
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


def scale(run: MeasuredRun, thresholds: Thresholds) -> Answer:
    """D1: the growth of ‖h‖ over the block that grows it most.

    A block without a value leaves the question open unless another block fires it.
    """
    blocks = range(run.depth)
    looks = []
    for epoch in run.epochs_of("growth", blocks):
        values = run.across("growth", epoch, blocks)
        finite = [value for value in values if not math.isnan(value)]
        largest = max(finite, default=math.nan)
        if largest > thresholds.growth:
            over = tuple(block for block, value in enumerate(values) if value > thresholds.growth)
            looks.append(Look(epoch=epoch, value=largest, fired=True, layers=over))
        elif len(finite) < len(values):
            block = next(block for block, value in enumerate(values) if math.isnan(value))
            gap = f"block {block}: {run.at('growth', epoch, block).reason}"
            looks.append(Look(epoch=epoch, value=math.nan, fired=None, reason=gap))
        else:
            looks.append(Look(epoch=epoch, value=largest, fired=False))
    return answer(looks, "growth was not measured")


def gradient(run: MeasuredRun, thresholds: Thresholds) -> Answer:
    """D2: the median of ‖g_L‖/‖e‖ relative to its value at init.

    A network that has learned has a small error e and with it a small gradient; that is no collapse.
    """
    metric, top = "grad_per_error", run.depth
    epochs = run.epochs_of(metric, (top,))
    if not epochs:
        older = run.epochs_of("grad_norm", (top,))
        why = ": the version that made this run measured ‖g_L‖ alone, train it anew" if older else ""
        return Answer(reason=f"{metric} was not measured at layer {top}{why}")
    init = run.at(metric, 0, top)
    looks = []
    for epoch in epochs:
        here = run.at(metric, epoch, top)
        reason = init.reason or here.reason
        value = here.value / init.value if reason is None and init.value > 0 else math.nan
        if reason is None and not math.isfinite(value):
            reason = "the gradient at init is zero" if init.value <= 0 else "overflow: the ratio is infinite"
        if reason is not None:
            looks.append(Look(epoch=epoch, value=math.nan, fired=None, reason=reason))
        else:
            looks.append(Look(epoch=epoch, value=value, fired=value < thresholds.gradient))
    return answer(looks, f"{metric} was not measured")


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
    seeds_needed: int | None = None  # that would decide, the mean and spread being what they are


def margin(
    rule: str,
    runs: Sequence[MeasuredRun],
    frozen: Mapping[int, MeasuredRun],
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


def _accuracies(runs: Mapping[int, MeasuredRun]) -> tuple[dict[int, float], dict[int, str]]:
    """Test accuracy at the last epoch by seed, and why it is undefined where it is."""
    readings = {seed: run.at("test_acc", run.epochs) for seed, run in runs.items()}
    values = {seed: reading.value for seed, reading in readings.items()}
    return values, {seed: reading.reason for seed, reading in readings.items() if reading.reason}


def _errors_removed(own: Sequence[float], base: Sequence[float]) -> float:
    errors = summarise(1 - value for value in base).mean
    return 1 - summarise(1 - value for value in own).mean / errors if errors > 0 else math.nan
