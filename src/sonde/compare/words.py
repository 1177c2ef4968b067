"""A comparison in words and lines, computed from its numbers."""

from sonde.compare.comparison import Comparison, Difference, Group
from sonde.compare.makers import remark
from sonde.statistics import Interval
from sonde.verdicts import number, signed

DIGITS = 4


def title(found: Comparison) -> str:
    """What was compared, where it was read, and whether the runs were matched."""
    where = "" if found.layer is None else f" at layer {found.layer}"
    epochs = sorted({value.epoch for group in found.groups for value in group.values.values()})
    when = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {', '.join(map(str, epochs))}"
    mark = "" if found.matched else " — UNMATCHED"
    return f"{found.metric}{where} by {found.factor}, {when}{mark}"


def mismatch(found: Comparison) -> str | None:
    """What else differs between runs that were compared nonetheless."""
    if found.matched:
        return None
    fields = (f"{key} ({', '.join(values)})" for key, values in found.differing.items())
    return f"unmatched: the runs also differ in {'; '.join(fields)}"


def group_line(group: Group) -> list[str]:
    """Level, n, mean, sample standard deviation, epoch and seeds."""
    epochs = sorted({value.epoch for value in group.values.values()})
    return [
        group.level.label,
        str(group.summary.n),
        number(group.summary.mean, DIGITS),
        number(group.summary.std, 2),
        ", ".join(map(str, epochs)),
        ", ".join(map(str, group.values)),
    ]


def difference_line(difference: Difference) -> list[str]:
    """Which difference, pairs, mean, interval and seeds."""
    return [
        f"{difference.level} − {difference.baseline}",
        str(difference.summary.n),
        signed(difference.summary.mean),
        interval(difference.interval),
        ", ".join(map(str, difference.by_seed)) or "none",
    ]


def notes(found: Comparison) -> list[str]:
    """Undefined values and intervals and seeds without a partner, each with its reason; what code made the runs."""
    lines = []
    for group in found.groups:
        for value in group.values.values():
            if value.reason:
                lines.append(f"{group.level.label}, seed {value.seed}: undefined: {value.reason}")
    for difference in found.differences:
        name = f"{difference.level} − {difference.baseline}"
        for seed, why in difference.without.items():
            lines.append(f"{name}: seed {seed} is not paired: {why}")
        if difference.interval.reason:
            lines.append(f"{name}: interval undefined: {difference.interval.reason}")
    said = remark(found.made_with)
    return [*lines, said] if said else lines


def interval(known: Interval) -> str:
    return "undefined" if known.reason else f"[{signed(known.low)}, {signed(known.high)}]"
