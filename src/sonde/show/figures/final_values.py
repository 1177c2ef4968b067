"""What training ends with: accuracies at the last epoch, and by what factor a norm changed since the first."""

import math
from dataclasses import dataclass

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from sonde.analysis.evidence import NoData
from sonde.core.formatting import accuracy, number
from sonde.core.seed_statistics import over_seeds
from sonde.metrics import SHARE
from sonde.show.figures.caption import missing_seeds
from sonde.show.figures.cohort import Cohort
from sonde.show.figures.marks import draw_bars
from sonde.show.figures.scales import PERCENT
from sonde.show.figures.series import point
from sonde.show.figures.style import FAINT, INK

HELD = 1.5
"""A quantity that changes by less than this factor, up or down, holds."""


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
        return float(np.nanmax([0.0, self.mean, min(self.mean + self.std, SHARE[1]), *self.seeds]))


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
        raise NoData(f"no {'defined ' * bool(rows.height)}{metric} rows in {cohort.source}")
    epoch = max(rows["epoch"].to_list())
    last = rows.filter(pl.col("epoch") == epoch)
    summary = over_seeds(last, "rule")
    rules, notes = [], []
    for rule, label in cohort.labels.items():
        values = last.filter(pl.col("rule") == rule, pl.col("defined"))["value"].to_list()
        of_rule = summary.filter(pl.col("rule") == rule).select("mean", "std", "n").rows()
        mean, std, n = of_rule[0] if of_rule else (None, None, 0)
        rules.append(Final(rule, label, _nan(mean), _nan(std), n, values))
        if rule not in set(rows["rule"]):
            notes.append(f"{label}: no {metric} rows in {cohort.source}.")
    notes += missing_seeds(cohort, last, f" at epoch {epoch}")
    counted = pl.DataFrame({"rule": [f.rule for f in rules], "n": [f.n for f in rules]})
    return Finals(epoch, rules, last, counted, notes)


def _nan(value: float | None) -> float:
    return math.nan if value is None else value


def draw_finals(ax: Axes, finals: list[Final], *, room: float, reference: Final | None = None) -> None:
    """Horizontal bars with whiskers and seeds for n ≥ 2, each with its value; `reference` is a line.

    `room` is what the values need beside the longest bar, as a share of it.
    """
    counts = {final.n for final in finals}
    names = []
    for row, final in enumerate(finals):
        names.append(final.label if len(counts) == 1 else f"{final.label}\n(n = {final.n})")
        bar = point(final.rule, final.label, row, final.mean, final.std, final.n, SHARE)
        draw_bars(ax, bar, thickness=0.62, cap=2.2, halo=True)
        if not math.isnan(final.std):
            spots = {"markersize": 2.8, "markerfacecolor": "white", "markeredgewidth": 0.6}
            offset = row + np.linspace(-0.17, 0.17, len(final.seeds))
            ax.plot(final.seeds, offset, "o", markeredgecolor=INK, **spots)  # type: ignore[arg-type]
        ax.annotate(
            final.words,
            (final.top, row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=INK,
            fontsize=7.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )
    if reference is not None:
        ax.axvline(reference.mean, color=FAINT, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    ax.set_yticks(range(len(finals)), [name.replace(" (", "\n(") for name in names])
    ax.set_ylim(len(finals) - 0.5, -0.5)
    top = max(max(final.top for final in finals), 0.02)
    ax.set_xlim(0, top * (1 + room))
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, top)
    ax.set_xticks([tick for tick in ticks if 0 <= tick <= 1.1 * top])
    ax.xaxis.set_major_formatter(PERCENT)
    ax.grid(False)
    ax.grid(True, axis="x")
    ax.tick_params(axis="y", length=0)
    ax.spines.left.set_visible(False)


@dataclass(frozen=True)
class Change:
    """The last value of a rule relative to its first, as a mean over the runs that have both."""

    label: str
    ratio: float  # NaN where it has no value
    first: int
    last: int
    n: int
    runs: int

    @property
    def when(self) -> str:
        return f"{'init' if self.first == 0 else f'epoch {self.first}'} to epoch {self.last}"

    @property
    def words(self) -> str:
        if math.isnan(self.ratio):
            return f"{self.label} undefined"
        verb = "grows" if self.ratio >= HELD else "falls to" if self.ratio <= 1 / HELD else "holds"
        fewer = "" if self.n == self.runs else f" (n = {self.n})"
        return f"{self.label} {verb} ×{number(self.ratio)}{fewer}"


def changes(cohort: Cohort, rows: pl.DataFrame) -> list[Change]:
    """Per rule, between the first and the last epoch at which any of its runs has a defined value."""
    moved = []
    for rule, label in cohort.labels.items():
        of_rule = rows.filter(pl.col("rule") == rule)
        defined = of_rule.filter("defined")
        if defined.is_empty():
            continue
        epochs = defined["epoch"].to_list()
        first, last = min(epochs), max(epochs)
        ends = defined.group_by("run", maintain_order=True).agg(
            start=pl.col("value").filter(pl.col("epoch") == first).first(),
            end=pl.col("value").filter(pl.col("epoch") == last).first(),
        )
        ratios = ends.select(rule=pl.lit(rule), value=pl.col("end") / pl.col("start"))
        both = (pl.col("value").is_finite() & (first < last)).fill_null(False)
        mean, n = over_seeds(ratios.with_columns(defined=both), "rule").select("mean", "n").row(0)
        moved.append(Change(label, _nan(mean), first, last, n, of_rule["run"].n_unique()))
    return moved


def change_words(moved: list[Change]) -> str:
    """All of them in a line: "init to epoch 100: BP grows ×12, DFA grows ×1.6e7"."""
    sharing: dict[str, list[str]] = {}
    for change in moved:
        sharing.setdefault(change.when, []).append(change.words)
    return "; ".join(f"{when}: {', '.join(said)}" for when, said in sharing.items())
