"""D4: do the blocks earn their keep?  A verdict on the rule over seeds, by the statistics of `sonde compare`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sonde.audit.subject import Subject
from sonde.statistics import Interval, Summary, paired, seeds_to_decide, summarise, t_interval

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
    rule: str, subjects: Sequence[Subject], frozen: Mapping[int, Subject], why_none: str, confidence: float
) -> Margin:
    """The paired t interval of accuracy − frozen's: it helps above 0, hurts below, and is undecided across it."""
    own, why = _accuracies({subject.seed: subject for subject in subjects})
    base, why_base = _accuracies(frozen)
    pairs = paired(own, base)
    points = {seed: round(100 * difference, 9) for seed, difference in pairs.differences.items()}
    without = {
        seed: why.get(seed) or (f"frozen baseline: {why_base[seed]}" if seed in why_base else reason)
        for seed, reason in pairs.without.items()
        if seed in own
    }
    known, interval = summarise(points.values()), t_interval(points.values(), confidence)

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
            seeds_needed=seeds_to_decide(known, confidence) if outcome == "undecided" else None,
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


def _accuracies(subjects: Mapping[int, Subject]) -> tuple[dict[int, float], dict[int, str]]:
    """Test accuracy at the last epoch by seed, and why it is undefined where it is."""
    cells = {seed: subject.at("test_acc", subject.epochs) for seed, subject in subjects.items()}
    values = {seed: cell.value for seed, cell in cells.items()}
    return values, {seed: cell.reason for seed, cell in cells.items() if cell.reason}


def _errors_removed(own: Sequence[float], base: Sequence[float]) -> float:
    errors = summarise(1 - value for value in base).mean
    return 1 - summarise(1 - value for value in own).mean / errors if errors > 0 else math.nan
