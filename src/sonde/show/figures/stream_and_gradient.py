"""Figures 11 and 12: the residual stream and the BP gradient, epoch by epoch."""

from collections.abc import Sequence
from functools import partial

import polars as pl
from matplotlib.figure import Figure

from sonde.analysis.evidence import Evidence, NoData
from sonde.show.figures.caption import caption, n_text
from sonde.show.figures.cohort import NETWORK, TRAINING, Cohort, check_recipe, cohort_of
from sonde.show.figures.final_values import change_words
from sonde.show.figures.panels import (
    GRADIENT_2,
    OF_WHICH_LOSS,
    STREAM,
    cohorts_of,
    grid_of,
    probe_text,
    start_text,
)
from sonde.show.figures.scales import log_axis, log_limits
from sonde.show.figures.style import DOUBLE, fine_print, legend_row, new_figure, panel_title, unbroken

RULES = ("bp", "dfa")
COLUMNS = (STREAM, GRADIENT_2)
SAME = tuple(field for field in (*NETWORK, *TRAINING) if field not in ("label", "out_ln"))


def resmlp(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 11: with the terminal LayerNorm above, without it below."""
    names = {True: "residual_mlp with terminal LN", False: "residual_mlp without terminal LN"}
    choose = partial(cohort_of, evidence, rules=RULES, model="residual_mlp")
    cohorts, absent = cohorts_of([partial(choose, named=names[ln], out_ln=ln) for ln in names])
    check_recipe(pl.concat([cohort.runs for cohort in cohorts]), SAME, free="terminal LN, rule and seed")
    return _rows(cohorts, absent, [_terminal(cohort) for cohort in cohorts])


def vit(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 12: the same for the vision transformer, at its CLS token."""
    cohort = cohort_of(evidence, rules=RULES, model="vit_mini", named="vit_mini")
    return _rows([cohort], [], [cohort.network])


def _terminal(cohort: Cohort) -> str:
    """The label, with what it leaves unsaid where the LayerNorm is there."""
    return f"{cohort.network}, with terminal LN" if cohort.runs["out_ln"][0] else cohort.network


def _rows(cohorts: Sequence[Cohort], absent: list[str], titles: list[str]) -> tuple[Figure, str]:
    """A row of panels per network; a column has one range, so that the rows can be compared."""
    for cohort in cohorts:
        if cohort.depth < 2:
            raise NoData(f"{cohort.network} has {cohort.depth} block, so there is no h_2 to show")
    grid = grid_of(cohorts, COLUMNS, RULES, absent)

    title = f"Stream and gradient over training, {cohorts[0].setting}, {n_text(grid.group, grid.summary)}"
    figure = new_figure(DOUBLE, 0.95 + 2.15 * len(grid.rows), title)
    layout = figure.add_gridspec(len(grid.rows) + 1, 2, height_ratios=[1] * len(grid.rows) + [0.05])
    axes = []
    for column, quantity in enumerate(COLUMNS):
        limits = log_limits(*grid.extents(column))
        kind = "median" if quantity is STREAM else f"median, {OF_WHICH_LOSS}"
        for row, panels in enumerate(grid.rows):
            ax, panel = figure.add_subplot(layout[row, column]), panels[column]
            axes.append(ax)
            panel.draw(ax, grid.names)
            if panel.lines:
                log_axis(ax, limits)
            heading = [titles[row]] if len(grid.rows) > 1 else []
            panel_title(ax, *heading, unbroken(change_words(panel.changes)), width=54)
            ax.set_ylabel(f"{quantity.symbol} ({kind})")
            if row < len(grid.rows) - 1:
                ax.set_xlabel("")
    legend_row(figure.add_subplot(layout[-1, :]), axes)
    fine_print(figure, grid.notes)
    shown = (
        "Norm of the last hidden state h_L and of the BP gradient at h_2 against epochs, "
        f"{probe_text(grid.panels)}{start_text(grid.panels)}."
    )
    look = f"Look at which lines leave their start: {grid.sentences}."
    return figure, caption(grid.group, grid.summary, shown, look, grid.notes)
