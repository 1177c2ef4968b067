"""Figures of the snapshots study: the residual stream and the BP gradient, epoch by epoch."""

import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any

import matplotlib
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from sonde.analysis.evidence import Evidence, NoData
from sonde.show.figures.groups import NETWORK_FIELDS, TRAINING_FIELDS, Cohort, check_recipe, cohort_of
from sonde.show.figures.marks import log_axis, log_limits, percent_axis
from sonde.show.figures.panels import (
    ACCURACY,
    BATCH_MEAN_LOSS,
    GRADIENT_2,
    GRADIENT_TOP,
    STREAM_TOP,
    Grid,
    Panel,
    cohorts_of,
    grid_of,
    probe_text,
)
from sonde.show.figures.series import caption, n_text
from sonde.show.figures.style import (
    DOUBLE,
    INK,
    SERIF_PARAMS,
    fine_print,
    legend_entries,
    legend_row,
    new_figure,
    panel_grid,
    panel_title,
    unbroken,
)

_TWO_RULES = ("bp", "dfa")
_TWO_COLUMNS = (STREAM_TOP, GRADIENT_2)
_SAME_BUT_LN = tuple(field for field in (*NETWORK_FIELDS, *TRAINING_FIELDS) if field not in ("label", "out_ln"))

_THREE_RULES = ("bp", "fa", "dfa")
_NETWORKS: dict[str, dict[str, object]] = {
    "vit_mini": {"model": "vit_mini"},
    "residual_mlp without terminal LN": {"model": "residual_mlp", "out_ln": False},
    "student_net": {"model": "student_net"},
}
_THREE_COLUMNS = (STREAM_TOP, GRADIENT_TOP, ACCURACY)
_SAME = ("scale", "batch", "lr")
_SAME_ON_A_TASK = ("task_label", "epochs", "steps", "samples")
_LEGEND_ROOM = 0.17  # of the first panel's height, per row of its legend


def draw_stream_by_terminal_ln(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 11: with the terminal LayerNorm above, without it below."""
    names = {True: "residual_mlp with terminal LN", False: "residual_mlp without terminal LN"}
    choose = partial(cohort_of, evidence, rules=_TWO_RULES, model="residual_mlp")
    cohorts, absent = cohorts_of([partial(choose, named=names[ln], out_ln=ln) for ln in names])
    check_recipe(pl.concat([cohort.runs for cohort in cohorts]), _SAME_BUT_LN, free="terminal LN, rule and seed")
    titles = [f"{cohort.network}{', with terminal LN' * bool(cohort.runs['out_ln'][0])}" for cohort in cohorts]
    return _draw_rows(cohorts, absent, titles)


def draw_stream_of_vit(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 12: the same for the vision transformer, at its CLS token."""
    cohort = cohort_of(evidence, rules=_TWO_RULES, model="vit_mini", named="vit_mini")
    return _draw_rows([cohort], [], [cohort.network])


def _draw_rows(cohorts: Sequence[Cohort], absent: list[str], titles: list[str]) -> tuple[Figure, str]:
    """Draw a row of panels per network; a column has one range, so that the rows can be compared."""
    for cohort in cohorts:
        if cohort.depth < 2:
            raise NoData(f"{cohort.network} has {cohort.depth} block, so there is no h_2 to show")
    grid = grid_of(cohorts, _TWO_COLUMNS, _TWO_RULES, absent)

    title = f"Stream and gradient over training, {cohorts[0].setting}, {n_text(grid.group, grid.summary)}"
    figure = new_figure(DOUBLE, 0.95 + 2.15 * len(grid.rows), title)
    axes, legend = panel_grid(figure, len(grid.rows), 2, legend=0.05)
    for column, quantity in enumerate(_TWO_COLUMNS):
        limits = log_limits(*grid.extents(column))
        kind = "median" if quantity is STREAM_TOP else f"median, {BATCH_MEAN_LOSS}"
        for row, panels in enumerate(grid.rows):
            ax, panel = axes[row][column], panels[column]
            panel.draw(ax, grid.names)
            if panel.lines:
                log_axis(ax, limits)
            heading = [titles[row]] if len(grid.rows) > 1 else []
            panel_title(ax, *heading, unbroken(panel.changes), width=54)
            ax.set_ylabel(f"{quantity.symbol} ({kind})")
            if row < len(grid.rows) - 1:
                ax.set_xlabel("")
    legend_row(legend, figure.axes[:-1])
    fine_print(figure, grid.notes)
    drawn = (
        f"Norm of the last hidden state h_L and of the BP gradient at h_2 against epochs, {probe_text(grid.panels)}."
    )
    return figure, caption(grid.group, grid.summary, f"{grid.sentences}.", drawn, grid.notes)


def draw_three_networks(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 13: three architectures under three rules, in the style of a paper.

    Each network has its own task and size, so only what they share is checked between rows.
    """
    choices = [partial(cohort_of, evidence, rules=_THREE_RULES, named=name, **_NETWORKS[name]) for name in _NETWORKS]
    cohorts, absent = cohorts_of(choices)
    runs = pl.concat([cohort.runs for cohort in cohorts])
    check_recipe(runs, _SAME, free="network, rule and seed")
    shared = pl.coalesce("task", "label")  # networks on tasks that are not recorded need not share one
    for _, on_task in runs.group_by(shared, maintain_order=True):
        check_recipe(on_task, _SAME_ON_A_TASK, free="network, rule and seed")
    grid = grid_of(cohorts, _THREE_COLUMNS, _THREE_RULES, absent)
    with matplotlib.rc_context(SERIF_PARAMS):
        return _draw_three_networks(cohorts, grid)


def _draw_three_networks(cohorts: list[Cohort], grid: Grid) -> tuple[Figure, str]:
    rules = dict.fromkeys(label for cohort in cohorts for label in cohort.labels.values())
    networks = f"{len(cohorts)} network{'s' * (len(cohorts) != 1)}"
    title = f"{' · '.join(rules)} on {networks}, {n_text(grid.group, grid.summary)}"
    figure = new_figure(DOUBLE, 0.8 + 1.65 * len(cohorts), title)
    axes = figure.subplots(len(cohorts), len(_THREE_COLUMNS), squeeze=False)
    shared = log_limits(*grid.extents(_THREE_COLUMNS.index(GRADIENT_TOP)))
    for row, cohort in enumerate(cohorts):
        for ax, panel in zip(axes[row], grid.rows[row], strict=True):
            panel.draw(ax, grid.names)
            _scale(ax, panel, shared)
            if row < len(cohorts) - 1:
                ax.set_xlabel("")
        label = [part for text in (cohort.network, cohort.task) for part in textwrap.wrap(text, 16)]
        axes[row, 0].set_ylabel("\n".join(label), weight="bold")
    headings = [STREAM_TOP.symbol, f"{GRADIENT_TOP.symbol} ({BATCH_MEAN_LOSS})", ACCURACY.symbol]
    for ax, heading in zip(axes[0], headings, strict=True):
        ax.set_title(heading, loc="center", color=INK)
    if grid.rows[0][0].lines:
        _draw_legend(axes[0, 0])
    others = {label: handle for label, handle in legend_entries(axes.flat).items() if label not in grid.names.values()}
    if others:  # chance, and the lines of seeds
        axes[0, -1].legend(list(others.values()), list(others), loc="lower right", bbox_to_anchor=(1, 0.12))
    fine_print(figure, grid.notes)
    figure.findobj(Text)  # ticks take their font when they are made: make them now
    drawn = (
        "Norm of the last hidden state h_L, norm of the BP gradient there, and test accuracy, against epochs. "
        f"Norms: {probe_text(grid.panels)}. ‖g_L‖ has one range for all rows."
    )
    return figure, caption(grid.group, grid.summary, f"{grid.sentences}.", drawn, grid.notes)


def _scale(ax: Axes, panel: Panel, shared: tuple[float, float]) -> None:
    """Set log axes for norms, with one range for the gradient, and per cent for accuracy."""
    ax.grid(True, axis="both")
    if not panel.lines:
        return
    if panel.quantity is ACCURACY:
        percent_axis(ax, *panel.extents(), chance=panel.cohort.chance)
    else:
        limits = shared if panel.quantity is GRADIENT_TOP else log_limits(*panel.extents())
        log_axis(ax, limits, mathtext=True)


def _draw_legend(ax: Axes) -> None:
    """Draw the legend inside a panel, whose axis is extended above the data to make room."""
    labels = ax.get_legend_handles_labels()[1]
    columns = len(labels) if sum(map(len, labels)) <= 10 else 1
    low, high = ax.get_ylim()
    share = _LEGEND_ROOM * (-(-len(labels) // columns))
    log_axis(ax, (low, high * (high / low) ** (share / (1 - share))), mathtext=True)
    style: dict[str, Any] = {"borderpad": 0.2, "borderaxespad": 0.2, "handlelength": 2.0}
    style |= {"handletextpad": 0.4, "columnspacing": 0.9, "labelspacing": 0.25}
    ax.legend(loc="upper left", ncols=columns, **style)
