"""Figure 13: three architectures under three rules, in the style of a paper."""

import textwrap
from functools import partial

import matplotlib
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from sonde.analysis.evidence import Evidence
from sonde.show.figures.caption import caption, n_text
from sonde.show.figures.cohort import Cohort, check_recipe, cohort_of
from sonde.show.figures.panels import (
    ACCURACY,
    GRADIENT_TOP,
    OF_WHICH_LOSS,
    STREAM,
    Grid,
    Panel,
    cohorts_of,
    grid_of,
    probe_text,
    start_text,
)
from sonde.show.figures.scales import PERCENT, linear_limits, log_axis, log_limits
from sonde.show.figures.style import DOUBLE, INK, SERIF, fine_print, new_figure

RULES = ("bp", "fa", "dfa")
ROWS: dict[str, dict[str, object]] = {
    "vit_mini": {"model": "vit_mini"},
    "residual_mlp without terminal LN": {"model": "residual_mlp", "out_ln": False},
    "student_net": {"model": "student_net"},
}
COLUMNS = (STREAM, GRADIENT_TOP, ACCURACY)
SAME = ("scale", "batch", "lr")
SAME_ON_A_TASK = ("task_label", "epochs", "steps", "samples")
LEGEND_ROOM = 0.17  # of the first panel's height, per row of its legend


def draw(evidence: Evidence) -> tuple[Figure, str]:
    """A network has its own task and its own size, so only what they share is checked between rows."""
    choices = [partial(cohort_of, evidence, rules=RULES, named=name, **ROWS[name]) for name in ROWS]
    cohorts, absent = cohorts_of(choices)
    runs = pl.concat([cohort.runs for cohort in cohorts])
    check_recipe(runs, SAME, free="network, rule and seed")
    shared = pl.coalesce("task", "label")  # networks on tasks that are not recorded need not share one
    for _, on_task in runs.group_by(shared, maintain_order=True):
        check_recipe(on_task, SAME_ON_A_TASK, free="network, rule and seed")
    grid = grid_of(cohorts, COLUMNS, RULES, absent)
    with matplotlib.rc_context(SERIF):
        return _draw(cohorts, grid)


def _draw(cohorts: list[Cohort], grid: Grid) -> tuple[Figure, str]:
    rules = dict.fromkeys(label for cohort in cohorts for label in cohort.labels.values())
    networks = f"{len(cohorts)} network{'s' * (len(cohorts) != 1)}"
    title = f"{' · '.join(rules)} on {networks}, {n_text(grid.group, grid.summary)}"
    figure = new_figure(DOUBLE, 0.8 + 1.65 * len(cohorts), title)
    axes = figure.subplots(len(cohorts), len(COLUMNS), squeeze=False)
    shared = log_limits(*grid.extents(COLUMNS.index(GRADIENT_TOP)))
    for row, cohort in enumerate(cohorts):
        for ax, panel in zip(axes[row], grid.rows[row], strict=True):
            panel.draw(ax, grid.names)
            _scale(ax, panel, shared)
            if row < len(cohorts) - 1:
                ax.set_xlabel("")
        label = [part for text in (cohort.network, cohort.task) for part in textwrap.wrap(text, 16)]
        axes[row, 0].set_ylabel("\n".join(label), weight="bold")
    headings = [STREAM.symbol, f"{GRADIENT_TOP.symbol} ({OF_WHICH_LOSS})", ACCURACY.symbol]
    for ax, heading in zip(axes[0], headings, strict=True):
        ax.set_title(heading, loc="center", color=INK)
    _legend(axes[0, 0], grid.rows[0][0])
    fine_print(figure, grid.notes)
    figure.findobj(Text)  # ticks take their font when they are made: make them now
    shown = (
        "Norm of the last hidden state h_L, norm of the BP gradient there, and test accuracy, against epochs. "
        f"Norms: {probe_text(grid.panels)}{start_text(grid.panels)}. ‖g_L‖ has one range for all rows."
    )
    look = f"Look at which rule leaves BP's range: {grid.sentences}."
    return figure, caption(grid.group, grid.summary, shown, look, grid.notes)


def _scale(ax: Axes, panel: Panel, shared: tuple[float, float]) -> None:
    """Log axes for norms, one range for the gradient; accuracy in per cent."""
    ax.grid(True, axis="both")
    if not panel.lines:
        return
    if panel.quantity is ACCURACY:
        ax.set_ylim(*linear_limits(*panel.extents()))
        ax.yaxis.set_major_formatter(PERCENT)
    else:
        limits = shared if panel.quantity is GRADIENT_TOP else log_limits(*panel.extents())
        log_axis(ax, limits, mathtext=True)


def _legend(ax: Axes, panel: Panel) -> None:
    """Inside the first panel, in room made above the data."""
    if not panel.lines:
        return
    labels = ax.get_legend_handles_labels()[1]
    columns = len(labels) if sum(map(len, labels)) <= 10 else 1
    low, high = ax.get_ylim()
    share = LEGEND_ROOM * (-(-len(labels) // columns))
    log_axis(ax, (low, high * (high / low) ** (share / (1 - share))), mathtext=True)
    ax.legend(
        loc="upper left",
        ncols=columns,
        borderpad=0.2,
        borderaxespad=0.2,
        handlelength=2.0,
        handletextpad=0.4,
        columnspacing=0.9,
        labelspacing=0.25,
    )
