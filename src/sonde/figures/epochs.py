"""A metric against epochs, one line per rule."""

import itertools
from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from sonde.figures.cohort import Cohort
from sonde.figures.marks import Series, gap_notes, series
from sonde.figures.words import span
from sonde.spreads import over_seeds


def over_epochs(rows: pl.DataFrame) -> pl.DataFrame:
    """Mean, spread and n over seeds for every rule and epoch.

    A rule's line reaches from its first row to its last; an epoch between that only others have is a gap.
    """
    ends = rows.group_by("rule").agg(first=pl.col("epoch").min(), last=pl.col("epoch").max())
    grid = ends.join(rows.select("epoch").unique(), how="cross")
    grid = grid.filter(pl.col("epoch").is_between(pl.col("first"), pl.col("last"))).select("rule", "epoch")
    summary = over_seeds(rows, "rule", "epoch")
    full = grid.join(summary, on=["rule", "epoch"], how="left").with_columns(pl.col("n").fill_null(0))
    return full.sort("rule", "epoch")


def rule_lines(cohort: Cohort, summary: pl.DataFrame, along: str = "epoch") -> list[Series]:
    """The lines of a summary, in the order of the rules; a rule without rows has none."""
    there = set(summary["rule"])
    return [
        series(summary, rule, label, along, by="rule")
        for rule, label in cohort.labels.items()
        if rule in there
    ]


def with_n(lines: list[Series]) -> dict[str, str]:
    """What the legend calls each line: with its n where the lines stand on different numbers of seeds."""
    spans: dict[str, str] = {}
    for key in dict.fromkeys(line.key for line in lines):
        spans[key] = span(int(n) for line in lines if line.key == key for n in line.n)
    labels = {line.key: line.label for line in lines}
    if len(set(spans.values())) <= 1:
        return labels
    return {key: f"{label} (n = {spans[key]})" for key, label in labels.items()}


def line_notes(lines: list[Series], *, log: bool, unit: str = "epochs") -> list[str]:
    """Gaps, lines that start late or end early, and n that changes along the way."""
    if not lines:
        return []
    first, last = min(line.x[0] for line in lines), max(line.x[-1] for line in lines)
    notes = []
    for line in lines:
        notes += gap_notes(line, log=log, unit=unit)
        if line.x[0] > first:
            notes.append(f"{line.label}: starts at {unit[:-1]} {line.x[0]:.0f}.")
        if line.x[-1] < last:
            notes.append(f"{line.label}: ends at {unit[:-1]} {line.x[-1]:.0f}.")
        notes += _changing_n(line, unit)
    return notes


def _changing_n(line: Series, unit: str) -> list[str]:
    there = line.n > 0
    x, n = line.x[there], line.n[there]
    starts = np.flatnonzero(np.r_[True, n[1:] != n[:-1]]) if n.size else np.array([], dtype=np.int64)
    if starts.size < 2:
        return []
    if starts.size > 3:
        return [f"{line.label}: n varies between {n.min()} and {n.max()} along the line."]
    parts = [f"{n[at]} up to {unit[:-1]} {x[after - 1]:.0f}" for at, after in itertools.pairwise(starts)]
    return [f"{line.label}: n = {', '.join(parts)}, {n[-1]} after."]


def epoch_axis(ax: Axes, lines: Sequence[Series]) -> None:
    """Whole epochs from the first to the last, with room for the markers."""
    first, last = min(line.x[0] for line in lines), max(line.x[-1] for line in lines)
    room = 0.03 * (last - first) or 0.5
    ax.set_xlim(first - room, last + room)
    ticks = MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]).tick_values(first, last)
    ax.set_xticks([tick for tick in ticks if first <= tick <= last and tick == round(tick)])
    ax.set_xlabel("epoch")
