"""By what factor a quantity changes from the first epoch to the last, per run and then over seeds."""

import math
from dataclasses import dataclass

import polars as pl

from sonde.figures.cohort import Cohort
from sonde.spreads import over_seeds
from sonde.verdicts import number

HELD = 1.5
"""A quantity that changes by less than this factor, up or down, holds."""


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
    found = []
    for rule, label in cohort.labels.items():
        of_rule = rows.filter(pl.col("rule") == rule)
        known = of_rule.filter("defined")
        if known.is_empty():
            continue
        epochs = known["epoch"].to_list()
        first, last = min(epochs), max(epochs)
        ends = known.group_by("run").agg(
            start=pl.col("value").filter(pl.col("epoch") == first).first(),
            end=pl.col("value").filter(pl.col("epoch") == last).first(),
        )
        ratios = ends.select(rule=pl.lit(rule), value=pl.col("end") / pl.col("start"))
        moved = (pl.col("value").is_finite() & (first < last)).fill_null(False)
        mean, n = over_seeds(ratios.with_columns(defined=moved), "rule").select("mean", "n").row(0)
        ratio = math.nan if mean is None else mean
        found.append(Change(label, ratio, first, last, n, of_rule["run"].n_unique()))
    return found


def change_words(found: list[Change]) -> str:
    """All of them in a line: "init to epoch 100: BP grows ×12, DFA grows ×1.6e7"."""
    sharing: dict[str, list[str]] = {}
    for change in found:
        sharing.setdefault(change.when, []).append(change.words)
    return "; ".join(f"{when}: {', '.join(said)}" for when, said in sharing.items())
