"""Figure 13: three architectures under three rules, in the style of a paper."""

import textwrap
from functools import partial

import matplotlib
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from sonde.figures.cohort import Cohort, cohort_of, together
from sonde.figures.epochs import with_n
from sonde.figures.evidence import Evidence
from sonde.figures.final import PERCENT
from sonde.figures.panels import (
    ACCURACY,
    GRADIENT_TOP,
    OF_WHICH_LOSS,
    STREAM,
    Panel,
    all_summaries,
    check_any,
    draw_panel,
    found_cohorts,
    linear_limits,
    panel_notes,
    panel_of,
    probe_text,
    start_text,
)
from sonde.figures.recipe import check_recipe
from sonde.figures.scales import log_axis, log_limits
from sonde.figures.style import DOUBLE, INK, SERIF, fine_print, new_figure
from sonde.figures.words import caption, n_text

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
    cohorts, absent = found_cohorts(choices)
    runs = pl.concat([cohort.runs for cohort in cohorts])
    check_recipe(runs, SAME, free="network, rule and seed")
    shared = pl.coalesce("task", "label")  # networks on tasks that are not recorded need not share one
    for _, on_task in runs.group_by(shared, maintain_order=True):
        check_recipe(on_task, SAME_ON_A_TASK, free="network, rule and seed")
    grid = [[panel_of(cohort, quantity) for quantity in COLUMNS] for cohort in cohorts]
    panels = [panel for row in grid for panel in row]
    check_any(panels)
    with matplotlib.rc_context(SERIF):
        return _draw(cohorts, grid, absent)


def _draw(cohorts: list[Cohort], grid: list[list[Panel]], absent: list[str]) -> tuple[Figure, str]:
    panels = [panel for row in grid for panel in row]
    group, summary = together(cohorts), all_summaries(panels)
    missing = [f"{c.network}: no {rule} run." for c in cohorts for rule in RULES if rule not in c.labels]
    notes = [*absent, *missing, *panel_notes(group, panels)]
    rules = dict.fromkeys(label for cohort in cohorts for label in cohort.labels.values())
    title = f"{' · '.join(rules)} on {_count(len(cohorts))}, {n_text(group, summary)}"
    figure = new_figure(DOUBLE, 0.8 + 1.65 * len(grid), title)
    axes = figure.subplots(len(grid), len(COLUMNS), squeeze=False)
    names = with_n([line for panel in panels for line in panel.lines])
    shared = log_limits(*(part for row in grid for part in row[1].extent()))
    for place, row in enumerate(grid):
        for column, panel in enumerate(row):
            ax = axes[place, column]
            draw_panel(ax, panel, names)
            _scale(ax, panel, shared)
            if place < len(grid) - 1:
                ax.set_xlabel("")
        row_label = [
            part for text in (cohorts[place].network, cohorts[place].task) for part in textwrap.wrap(text, 16)
        ]
        axes[place, 0].set_ylabel("\n".join(row_label), weight="bold")
    for ax, heading in zip(axes[0], _headings(), strict=True):
        ax.set_title(heading, loc="center", color=INK)
    _legend(axes[0, 0], grid[0][0])
    fine_print(figure, notes)
    figure.findobj(Text)  # ticks take their font when they are made: make them now
    shown = (
        "Norm of the last hidden state h_L, norm of the BP gradient there, and test accuracy, against epochs. "
        f"Norms: {probe_text(panels)}{start_text(panels)}. ‖g_L‖ has one range for all rows."
    )
    look = f"Look at which rule leaves BP's range: {'; '.join(panel.sentence for panel in panels)}."
    return figure, caption(group, summary, shown, look, notes)


def _count(networks: int) -> str:
    return f"{networks} network{'s' * (networks != 1)}"


def _headings() -> list[str]:
    return [STREAM.symbol, f"{GRADIENT_TOP.symbol} ({OF_WHICH_LOSS})", ACCURACY.symbol]


def _scale(ax: Axes, panel: Panel, shared: tuple[float, float]) -> None:
    """Log axes for norms, one range for the gradient; accuracy in per cent."""
    ax.grid(True, axis="both")
    if not panel.lines:
        return
    if panel.quantity is ACCURACY:
        ax.set_ylim(*linear_limits(*panel.extent()))
        ax.yaxis.set_major_formatter(PERCENT)
    else:
        limits = shared if panel.quantity is GRADIENT_TOP else log_limits(*panel.extent())
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
