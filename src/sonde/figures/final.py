"""Accuracy at the end of training: per run, then over seeds."""

import math
from dataclasses import dataclass

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from sonde.figures.cohort import Cohort
from sonde.figures.evidence import NoData
from sonde.figures.style import COLOR, FAINT, INK
from sonde.figures.words import missing_seeds
from sonde.statistics import over_seeds
from sonde.verdicts import accuracy

PERCENT = PercentFormatter(1, decimals=0, symbol=" %")


@dataclass(frozen=True)
class Final:
    """A rule's accuracy at the last epoch; NaN where there is none."""

    rule: str
    label: str
    mean: float
    std: float  # sample standard deviation, NaN for n < 2
    n: int
    seeds: list[float]

    @property
    def words(self) -> str:
        """In per cent: "59.2 ± 0.4 %"."""
        return accuracy(self.mean, self.std)

    @property
    def top(self) -> float:
        """The largest value drawn."""
        return max([0.0 if math.isnan(self.mean) else self.mean, *self.seeds, *self._whisker])

    @property
    def _whisker(self) -> list[float]:
        return [] if math.isnan(self.std) else [self.mean + self.std]


@dataclass(frozen=True)
class Finals:
    """Every rule's accuracy at one epoch, the last that any run reached."""

    epoch: int
    rules: list[Final]
    rows: pl.DataFrame
    summary: pl.DataFrame  # rule and n
    notes: list[str]

    @property
    def words(self) -> str:
        return ", ".join(f"{final.label} {final.words}" for final in self.rules)

    def of(self, rule: str) -> Final | None:
        return next((final for final in self.rules if final.rule == rule and final.n), None)


def finals_of(cohort: Cohort, metric: str = "test_acc") -> Finals:
    """Accuracy at the last epoch; a run that does not reach it has none, and that is said."""
    rows = cohort.evidence.metric(metric)
    if not rows["defined"].any():
        raise NoData(f"no {'defined ' * bool(rows.height)}{metric} rows in {cohort.evidence.source}")
    epoch = max(rows["epoch"].to_list())
    last = rows.filter(pl.col("epoch") == epoch)
    summary = over_seeds(last, "rule")
    rules, notes = [], []
    for rule, label in cohort.labels.items():
        of_rule = rows.filter(pl.col("rule") == rule)
        values = last.filter(pl.col("rule") == rule, pl.col("defined"))["value"].to_list()
        found = summary.filter(pl.col("rule") == rule).select("mean", "std", "n").rows()
        mean, std, n = found[0] if found else (None, None, 0)
        rules.append(Final(rule, label, _nan(mean), _nan(std), n, values))
        if of_rule.is_empty():
            notes.append(f"{label}: no {metric} rows in {cohort.evidence.source}.")
    notes += missing_seeds(cohort, last, f" at epoch {epoch}")
    counted = pl.DataFrame({"rule": [f.rule for f in rules], "n": [f.n for f in rules]})
    return Finals(epoch, rules, last, counted, notes)


def _nan(value: float | None) -> float:
    return math.nan if value is None else value


def draw_bars(ax: Axes, finals: list[Final], *, room: float, reference: Final | None = None) -> None:
    """Horizontal bars with whiskers and seeds for n ≥ 2, each with its value; `reference` is a line.

    `room` is what the values need beside the longest bar, as a share of it.
    """
    counts = {final.n for final in finals}
    names = []
    for place, final in enumerate(finals):
        names.append(final.label if len(counts) == 1 else f"{final.label}\n(n = {final.n})")
        if math.isnan(final.mean):
            ax.plot(0, place, "x", color=FAINT, markersize=4)
        else:
            ax.barh(place, final.mean, height=0.62, color=COLOR[final.rule])
        if not math.isnan(final.std):
            for color, width in (("white", 2.4), (INK, 0.8)):  # a whisker is seen on its bar too
                ax.errorbar(
                    final.mean,
                    place,
                    xerr=final.std,
                    fmt="none",
                    ecolor=color,
                    elinewidth=width,
                    capsize=2.2,
                    capthick=width,
                )
            spots = {"markersize": 2.8, "markerfacecolor": "white", "markeredgewidth": 0.6}
            offset = place + np.linspace(-0.17, 0.17, len(final.seeds))
            ax.plot(final.seeds, offset, "o", markeredgecolor=INK, **spots)  # type: ignore[arg-type]
        ax.annotate(
            final.words,
            (final.top, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=INK,
            fontsize=7.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )
    if reference is not None:
        ax.axvline(reference.mean, color=FAINT, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    ax.set_yticks(range(len(finals)), names)
    ax.set_ylim(len(finals) - 0.5, -0.5)
    top = max(max(final.top for final in finals), 0.02)
    ax.set_xlim(0, top * (1 + room))
    ax.set_xticks(
        [tick for tick in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, top) if 0 <= tick <= 1.1 * top]
    )
    ax.xaxis.set_major_formatter(PERCENT)
    ax.grid(False)
    ax.grid(True, axis="x")
    ax.tick_params(axis="y", length=0)
    ax.spines.left.set_visible(False)
