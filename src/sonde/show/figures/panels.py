"""Quantities of networks against epochs, one line per rule: the panels of the figures that follow training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import polars as pl
from matplotlib.axes import Axes

from sonde.analysis.evidence import NoData
from sonde.metrics import TRAINED, as_math
from sonde.show.figures.caption import merge_notes, missing_seeds
from sonde.show.figures.cohort import Cohort, Together, line_key, together, with_lines
from sonde.show.figures.final_values import Change, change_words, changes, finals_of
from sonde.show.figures.marks import draw_panel
from sonde.show.figures.scales import epoch_axis
from sonde.show.figures.series import Curves, Floats, Series, curves, line_notes, with_n


@dataclass(frozen=True)
class Quantity:
    """What a column of panels shows."""

    metric: str
    at: str = ""  # the layer, as its symbol names it
    layer: Callable[[Cohort], int] | None = None  # of the whole network where there is none

    @property
    def name(self) -> str:
        """In sentences."""
        known = TRAINED[self.metric]
        return known.at(self.at) if self.at else known.label

    @property
    def symbol(self) -> str:
        """On the figure."""
        return as_math(self.name) if self.at else self.name

    @property
    def log(self) -> bool:
        return TRAINED[self.metric].log


STREAM = Quantity("hidden_norm", "L", lambda cohort: cohort.depth)
GRADIENT_TOP = Quantity("grad_norm", "L", lambda cohort: cohort.depth)
GRADIENT_2 = Quantity("grad_norm", "2", lambda cohort: 2)
ACCURACY = Quantity("test_acc")

OF_WHICH_LOSS = "batch-mean loss"
"""The gradient that every panel draws is of this loss, as that of the paper layout is."""

READ = {
    "cls": "of the CLS token",
    "last": "of the last token",
    "mean": "of the mean over tokens or positions",
}


@dataclass(frozen=True)
class Panel:
    """One quantity of one network."""

    cohort: Cohort
    quantity: Quantity
    curves: Curves

    @property
    def rows(self) -> pl.DataFrame:
        return self.curves.rows

    @property
    def lines(self) -> list[Series]:
        return self.curves.lines

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

    def extents(self) -> list[Floats]:
        return self.curves.extents(log=self.quantity.log)

    def notes(self, *, alone: bool) -> list[str]:
        """What is not drawn, and why; the network is named unless it is alone in the figure."""
        cohort, metric = self.cohort, self.quantity.metric
        if self.rows.is_empty():
            return [f"{cohort.network}: no {metric} rows in {cohort.source}."]
        names = {r: label if alone else line_key(cohort, r) for r, label in cohort.labels.items()}
        named = [replace(line, label=names[line.key]) for line in self.lines]
        absent = [label for rule, label in names.items() if rule not in set(self.rows["rule"])]
        return line_notes(named, log=self.quantity.log) + [
            f"{label}: no {metric} rows in {cohort.source}." for label in absent
        ]

    def draw(self, ax: Axes, names: dict[str, str], along: Sequence[Series] | None = None) -> None:
        """The y axis is left to the figure; `along` are the lines whose epochs the x axis spans."""
        log, empty = self.quantity.log, f"no {self.quantity.metric} rows"
        draw_panel(ax, self.lines, log=log, names=names, marks=9, empty=empty)
        if self.lines:
            epoch_axis(ax, self.lines if along is None else along)


def panel_of(cohort: Cohort, quantity: Quantity) -> Panel:
    """The rows of a quantity; there may be none."""
    rows = cohort.evidence.metric(quantity.metric)
    if quantity.metric == "grad_norm":  # stored per sample; some files know the batch-mean loss only
        rows = rows.with_columns(pl.col("value") / pl.col("probe_size").fill_null(1))
    if quantity.layer is not None:
        rows = rows.filter(pl.col("layer") == quantity.layer(cohort))
    return Panel(cohort, quantity, curves(cohort, rows, "epoch"))


def check_any(panels: Sequence[Panel]) -> None:
    """NoData where nothing at all could be drawn."""
    if any(panel.rows["defined"].any() for panel in panels):
        return
    metrics = " or ".join(dict.fromkeys(panel.quantity.metric for panel in panels))
    source = panels[0].cohort.source
    reasons = {reason for panel in panels for reason in panel.rows["reason"].drop_nulls()}
    if reasons:
        raise NoData(f"every {metrics} value in {source} is undefined: {', '.join(sorted(reasons))}")
    raise NoData(f"no {metrics} rows in {source}")


def cohorts_of(choices: Sequence[Callable[[], Cohort]]) -> tuple[list[Cohort], list[str]]:
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


def all_summaries(panels: Sequence[Panel]) -> pl.DataFrame:
    """n of every point of every line."""
    return pl.concat(
        with_lines(panel.cohort, panel.curves.summary.select("rule", "n")) for panel in panels if panel.lines
    )


@dataclass(frozen=True)
class Grid:
    """A row of panels for each network, a column for each quantity."""

    rows: list[list[Panel]]
    group: Together
    notes: list[str]  # what is absent, and what the panels do not show

    @property
    def panels(self) -> list[Panel]:
        return [panel for row in self.rows for panel in row]

    @property
    def summary(self) -> pl.DataFrame:
        return all_summaries(self.panels)

    @property
    def names(self) -> dict[str, str]:
        return with_n([line for panel in self.panels for line in panel.lines])

    @property
    def sentences(self) -> str:
        return "; ".join(panel.sentence for panel in self.panels)

    def extents(self, column: int) -> list[Floats]:
        """Of a column, so that its rows can have one range and be compared."""
        return [part for row in self.rows for part in row[column].extents()]


def grid_of(
    cohorts: Sequence[Cohort], quantities: Sequence[Quantity], rules: Sequence[str], absent: Sequence[str]
) -> Grid:
    """NoData where nothing at all could be drawn; `absent` says which networks have no runs."""
    rows = [[panel_of(cohort, quantity) for quantity in quantities] for cohort in cohorts]
    panels = [panel for row in rows for panel in row]
    check_any(panels)
    group = together(cohorts)
    missing = [f"{c.network}: no {rule} run." for c in cohorts for rule in rules if rule not in c.labels]
    seeds = [with_lines(panel.cohort, panel.rows.select("rule", "seed", "defined")) for panel in panels]
    tagged = [(note, panel.quantity.name) for panel in panels for note in panel.notes(alone=len(cohorts) == 1)]
    gaps = merge_notes(tagged, (quantity.name for quantity in quantities))
    return Grid(rows, group, [*absent, *missing, *missing_seeds(group, pl.concat(seeds)), *gaps])


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
    read = "".join(f" ({network}: {READ[reader]})" for network, reader in sorted(readers.items()) if reader in READ)
    return f"median over {many or 'the'} probe samples{read}; {loss}"


def start_text(panels: Sequence[Panel]) -> str:
    """What epoch 0 is, where it is shown."""
    there = any((panel.rows["epoch"] == 0).any() for panel in panels)
    return "; epoch 0 is the initialisation" if there else ""
