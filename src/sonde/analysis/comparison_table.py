"""A comparison as tables and notes: every number with its n and seeds, undefined said as such."""

from sonde.analysis.comparison import Comparison, Difference, Group
from sonde.analysis.runs import several_versions
from sonde.core.formatting import number, signed

DIGITS = 4  # of a mean
SPREAD = "s.d.: sample standard deviation over seeds (ddof 1); interval: Student's t over seeds."
DIFFERENCES = {"difference": "left", "n": "right", "mean": "right", "95 % interval": "left", "seeds": "left"}
"""Headings of the differences, each left or right."""


def title(comparison: Comparison) -> str:
    """What was compared, where it was read, and whether the runs were matched."""
    where = "" if comparison.layer is None else f" at layer {comparison.layer}"
    epochs = sorted({epoch for group in comparison.groups for epoch in group.epochs.values()})
    when = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {', '.join(map(str, epochs))}"
    mark = "" if comparison.matched else " — UNMATCHED"
    return f"{comparison.metric}{where} by {comparison.factor}, {when}{mark}"


def columns(comparison: Comparison) -> dict[str, str]:
    """Headings of the levels, each left or right."""
    numbers = dict.fromkeys(("n", "mean", "s.d.", "epoch"), "right")
    return {comparison.factor: "left", **numbers, "seeds": "left"}


def level_lines(comparison: Comparison) -> list[list[str]]:
    """Level, n, mean, sample standard deviation, epoch and seeds, the baseline first."""
    return [_level(group) for group in comparison.groups]


def difference_lines(comparison: Comparison) -> list[list[str]]:
    """Which difference, pairs, mean, interval and seeds."""
    return [_difference(difference) for difference in comparison.differences]


def _level(group: Group) -> list[str]:
    return [
        group.level.label,
        str(group.summary.n),
        number(group.summary.mean, DIGITS),
        number(group.summary.std, 2),
        ", ".join(map(str, sorted(set(group.epochs.values())))),
        ", ".join(map(str, group.runs)),
    ]


def _difference(difference: Difference) -> list[str]:
    interval = difference.interval
    between = "undefined" if interval.reason else f"[{signed(interval.low)}, {signed(interval.high)}]"
    return [
        f"{difference.level} − {difference.baseline}",
        str(difference.summary.n),
        signed(difference.summary.mean),
        between,
        ", ".join(map(str, difference.by_seed)) or "none",
    ]


def notes(comparison: Comparison) -> list[str]:
    """What else differs, undefined values and intervals and seeds without a partner, each with its reason; what code
    made the runs.
    """
    said = []
    if not comparison.matched:
        fields = (f"{key} ({', '.join(values)})" for key, values in comparison.differing.items())
        said.append(f"unmatched: the runs also differ in {'; '.join(fields)}")
    for group in comparison.groups:
        for seed, reading in group.readings.items():
            if reading.reason:
                said.append(f"{group.level.label}, seed {seed}: undefined: {reading.reason}")
    for difference in comparison.differences:
        name = f"{difference.level} − {difference.baseline}"
        for seed, why in difference.without.items():
            said.append(f"{name}: seed {seed} is not paired: {why}")
        if difference.interval.reason:
            said.append(f"{name}: interval undefined: {difference.interval.reason}")
    made = several_versions(comparison.made_with)
    return [*said, made] if made else said
