"""Figures 11 and 12: the residual stream and the BP gradient, epoch by epoch."""

from collections.abc import Sequence
from functools import partial

import polars as pl
from matplotlib.figure import Figure

from sonde.figures.change import change_words
from sonde.figures.cohort import NETWORK, TRAINING, Cohort, cohort_of, together
from sonde.figures.epochs import with_n
from sonde.figures.evidence import Evidence
from sonde.figures.panels import (
    GRADIENT_2,
    OF_WHICH_LOSS,
    STREAM,
    all_summaries,
    check_any,
    check_depth,
    draw_panel,
    found_cohorts,
    panel_notes,
    panel_of,
    probe_text,
    start_text,
)
from sonde.figures.recipe import check_recipe
from sonde.figures.scales import log_axis, log_limits
from sonde.figures.style import DOUBLE, fine_print, legend_row, new_figure, panel_title, unbroken
from sonde.figures.words import caption, n_text

RULES = ("bp", "dfa")
COLUMNS = (STREAM, GRADIENT_2)
SAME = tuple(field for field in (*NETWORK, *TRAINING) if field not in ("label", "out_ln"))


def resmlp(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 11: with the terminal LayerNorm above, without it below."""
    names = {True: "residual_mlp with terminal LN", False: "residual_mlp without terminal LN"}
    choose = partial(cohort_of, evidence, rules=RULES, model="residual_mlp")
    cohorts, absent = found_cohorts([partial(choose, named=names[ln], out_ln=ln) for ln in names])
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
    check_depth(cohorts, least=2)
    grid = [[panel_of(cohort, quantity) for quantity in COLUMNS] for cohort in cohorts]
    panels = [panel for row in grid for panel in row]
    check_any(panels)
    group, summary = together(cohorts), all_summaries(panels)
    missing = [f"{c.network}: no {rule} run." for c in cohorts for rule in RULES if rule not in c.labels]
    notes = [*absent, *missing, *panel_notes(group, panels)]

    first = cohorts[0]
    title = f"Stream and gradient over training, {first.setting}, {n_text(group, summary)}"
    figure = new_figure(DOUBLE, 0.95 + 2.15 * len(grid), title)
    layout = figure.add_gridspec(len(grid) + 1, 2, height_ratios=[1] * len(grid) + [0.05])
    names = with_n([line for panel in panels for line in panel.lines])
    axes = []
    for column, quantity in enumerate(COLUMNS):
        limits = log_limits(*(part for row in grid for part in row[column].extent()))
        for place, row in enumerate(grid):
            ax = figure.add_subplot(layout[place, column])
            axes.append(ax)
            draw_panel(ax, row[column], names)
            if row[column].lines:
                log_axis(ax, limits)
            heading = [titles[place]] if len(grid) > 1 else []
            panel_title(ax, *heading, unbroken(change_words(row[column].changes)), width=54)
            kind = "median" if quantity is STREAM else f"median, {OF_WHICH_LOSS}"
            ax.set_ylabel(f"{quantity.symbol} ({kind})")
            if place < len(grid) - 1:
                ax.set_xlabel("")
    legend_row(figure.add_subplot(layout[-1, :]), axes)
    fine_print(figure, notes)
    shown = (
        "Norm of the last hidden state h_L and of the BP gradient at h_2 against epochs, "
        f"{probe_text(panels)}{start_text(panels)}."
    )
    look = f"Look at which lines leave their start: {'; '.join(panel.sentence for panel in panels)}."
    return figure, caption(group, summary, shown, look, notes)
