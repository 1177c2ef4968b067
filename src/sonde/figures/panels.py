"""Panels of the snapshot figures: a network's norms and accuracy against epochs, one line per rule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from sonde.figures.change import Change, change_words, changes
from sonde.figures.cohort import Cohort, Together, line_key, with_lines
from sonde.figures.epochs import epoch_axis, line_notes, over_epochs, rule_lines
from sonde.figures.evidence import NoData
from sonde.figures.final import finals_of
from sonde.figures.marks import Floats, Series, draw_line
from sonde.figures.style import FAINT
from sonde.figures.words import merge_notes, missing_seeds


@dataclass(frozen=True)
class Quantity:
    """What a column of panels shows."""

    metric: str
    symbol: str  # on the figure
    name: str  # in sentences
    layer: Callable[[Cohort], int] | None = None  # of the whole network where there is none
    log: bool = True


STREAM = Quantity("hidden_norm", r"$\|h_L\|$", "‖h_L‖", lambda cohort: cohort.depth)
GRADIENT_TOP = Quantity("grad_norm", r"$\|g_L\|$", "‖g_L‖", lambda cohort: cohort.depth)
GRADIENT_2 = Quantity("grad_norm", r"$\|g_2\|$", "‖g_2‖", lambda cohort: 2)
ACCURACY = Quantity("test_acc", "test accuracy", "test accuracy", log=False)


@dataclass(frozen=True)
class Panel:
    """One quantity of one network: its rows, and their summary as lines."""

    cohort: Cohort
    quantity: Quantity
    rows: pl.DataFrame
    lines: list[Series]

    @property
    def summary(self) -> pl.DataFrame:
        return over_epochs(self.rows)

    @property
    def changes(self) -> list[Change]:
        return changes(self.cohort, self.rows)

    @property
    def sentence(self) -> str:
        """What the rows say: "ResMLP, ‖h_L‖, init to epoch 100: BP grows ×12, DFA grows ×1.6e7"."""
        what = f"{self.cohort.network}, {self.quantity.name}"
        if not self.rows["defined"].any():
            return f"{what}: no values"
        if self.quantity is ACCURACY:
            finals = finals_of(self.cohort)
            return f"{what} at epoch {finals.epoch}: {finals.words}"
        return f"{what}, {change_words(self.changes)}"

    def extent(self) -> list[Floats]:
        return [line.extent(self.quantity.log) for line in self.lines]

    def notes(self, *, alone: bool) -> list[str]:
        """What is not drawn, and why; the network is named unless it is alone in the figure."""
        cohort, quantity = self.cohort, self.quantity
        if self.rows.is_empty():
            return [f"{cohort.network}: no {quantity.metric} rows in {cohort.evidence.source}."]
        names = {r: label if alone else line_key(cohort, r) for r, label in cohort.labels.items()}
        absent = [label for rule, label in names.items() if rule not in set(self.rows["rule"])]
        return line_notes([replace(line, label=names[line.key]) for line in self.lines], log=quantity.log) + [
            f"{label}: no {quantity.metric} rows in {cohort.evidence.source}." for label in absent
        ]


def panel_of(cohort: Cohort, quantity: Quantity) -> Panel:
    """The rows of a quantity; there may be none."""
    rows = cohort.evidence.metric(quantity.metric)
    if quantity.metric == "grad_norm":  # stored per sample; some files know the batch-mean loss only
        rows = rows.with_columns(pl.col("value") / pl.col("probe_size").fill_null(1))
    if quantity.layer is not None:
        rows = rows.filter(pl.col("layer") == quantity.layer(cohort))
    return Panel(cohort, quantity, rows, rule_lines(cohort, over_epochs(rows)) if rows.height else [])


def check_any(panels: Sequence[Panel]) -> None:
    """NoData where nothing at all could be drawn."""
    if any(panel.rows["defined"].any() for panel in panels):
        return
    metrics = " or ".join(dict.fromkeys(panel.quantity.metric for panel in panels))
    source = panels[0].cohort.evidence.source
    reasons = {reason for panel in panels for reason in panel.rows["reason"].drop_nulls()}
    if reasons:
        raise NoData(f"every {metrics} value in {source} is undefined: {', '.join(sorted(reasons))}")
    raise NoData(f"no {metrics} rows in {source}")


def found_cohorts(choices: Sequence[Callable[[], Cohort]]) -> tuple[list[Cohort], list[str]]:
    """The cohorts there are, and a note for each that has no runs; NoData where there is none at all."""
    cohorts, notes = [], []
    for choose in choices:
        try:
            cohorts.append(choose())
        except NoData as missing:
            notes.append(f"{str(missing)[0].upper()}{str(missing)[1:]}.")
    if not cohorts:
        raise NoData("; ".join(note[0].lower() + note[1:-1] for note in notes))
    return cohorts, notes


def check_depth(cohorts: Sequence[Cohort], least: int) -> None:
    for cohort in cohorts:
        if cohort.depth < least:
            raise NoData(f"{cohort.network} has {cohort.depth} block, so there is no h_{least} to show")


def all_summaries(panels: Sequence[Panel]) -> pl.DataFrame:
    """n of every point of every line."""
    parts = [with_lines(panel.cohort, panel.summary.select("rule", "n")) for panel in panels if panel.lines]
    return pl.concat(parts)


def panel_notes(group: Together, panels: Sequence[Panel]) -> list[str]:
    """Seeds without a value in any panel, and what the panels do not show."""
    rows = [with_lines(panel.cohort, panel.rows.select("rule", "seed", "defined")) for panel in panels]
    alone = len({id(panel.cohort) for panel in panels}) == 1
    tagged = [(note, panel.quantity.name) for panel in panels for note in panel.notes(alone=alone)]
    return missing_seeds(group, pl.concat(rows)) + merge_notes(tagged, (p.quantity.name for p in panels))


OF_WHICH_LOSS = "batch-mean loss"
READ = {
    "cls": "of the CLS token",
    "last": "of the last token",
    "mean": "of the mean over tokens or positions",
}
"""The gradient that every panel draws is of this loss, as that of the paper layout is."""


def probe_text(panels: Sequence[Panel]) -> str:
    """Over which samples the norms are medians, and of which loss the gradient is."""
    rows = pl.concat([p.rows.select("samples") for p in panels if p.quantity.layer is not None])
    sizes = sorted({size for size in rows["samples"].drop_nulls() if size > 0})
    many = "–".join(f"{size:,}" for size in dict.fromkeys([*sizes[:1], *sizes[-1:]]))
    loss = (
        f"the gradient is that of the {OF_WHICH_LOSS}, 1/N of that of each sample's own loss, with N = {many}"
        if many
        else f"the gradient is that of the {OF_WHICH_LOSS}, over a number of samples that is not recorded"
    )
    readers = {panel.cohort.network: panel.cohort.runs["reader"][0] for panel in panels}
    read = "".join(
        f" ({network}: {READ[reader]})" for network, reader in sorted(readers.items()) if reader in READ
    )
    return f"median over {many or 'the'} probe samples{read}; {loss}"


def start_text(panels: Sequence[Panel]) -> str:
    """What epoch 0 is, where it is shown."""
    there = any((panel.rows["epoch"] == 0).any() for panel in panels)
    return "; epoch 0 is the initialisation" if there else ""


def draw_panel(ax: Axes, panel: Panel, names: dict[str, str], along: Sequence[Series] | None = None) -> None:
    """Lines with their bands, or a word that there is nothing; the y axis is left to the figure.

    `names` is what the legend calls the rules, `along` the lines whose epochs the x axis spans.
    """
    if not panel.lines:
        say_empty(ax, f"no {panel.quantity.metric} rows")
        return
    for line in panel.lines:
        named = replace(line, label=names.get(line.key, line.label))
        draw_line(ax, named, log=panel.quantity.log, marks=9)
    epoch_axis(ax, panel.lines if along is None else along)


def say_empty(ax: Axes, why: str) -> None:
    ax.text(0.5, 0.5, why, ha="center", va="center", color=FAINT, transform=ax.transAxes)
    ax.set_xticks([])
    ax.set_yticks([])


def linear_limits(*values: Floats, room: float = 0.06) -> tuple[float, float]:
    """Limits of a linear axis that contain every value."""
    every = np.concatenate([np.ravel(part) for part in values])
    every = every[np.isfinite(every)]
    if not every.size:
        return 0.0, 1.0
    low, high = float(every.min()), float(every.max())
    margin = room * (high - low) or 0.05
    return low - margin, high + margin
