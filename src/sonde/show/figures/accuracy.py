"""Figure 14: train and test accuracy against epochs, per rule."""

from dataclasses import replace

import polars as pl
from matplotlib.figure import Figure

from sonde.analysis.evidence import Evidence
from sonde.show.figures.caption import caption, merge_notes, missing_seeds, n_text
from sonde.show.figures.cohort import cohort_of
from sonde.show.figures.final_values import finals_of
from sonde.show.figures.panels import ACCURACY, Quantity, all_summaries, check_any, panel_of
from sonde.show.figures.scales import PERCENT, linear_limits
from sonde.show.figures.series import with_n
from sonde.show.figures.style import DOUBLE, fine_print, legend_row, new_figure, panel_title

TRAIN = Quantity("train_acc")


def draw(evidence: Evidence) -> tuple[Figure, str]:
    """From the first epoch on: files of the paper layout know nothing before it, and training accuracy has no value."""
    trained = Evidence(evidence.rows.filter(pl.col("epoch") > 0), evidence.runs, evidence.source)
    cohort = cohort_of(trained)
    panels = [panel_of(cohort, quantity) for quantity in (TRAIN, ACCURACY)]
    check_any(panels)
    summary = all_summaries(panels)
    tagged = [
        (note, panel.quantity.name)
        for panel in panels
        for note in [*panel.notes(alone=True), *(missing_seeds(cohort, panel.rows) if panel.lines else [])]
    ]
    notes = merge_notes(tagged, (panel.quantity.name for panel in panels if panel.lines))

    title = f"Accuracy over training, {cohort.setting}, {cohort.epochs} epochs, {n_text(cohort, summary)}"
    figure = new_figure(DOUBLE, 3.2, title)
    layout = figure.add_gridspec(2, 2, height_ratios=(1, 0.06))
    limits = linear_limits(*(part for panel in panels for part in panel.extents()))
    every = [line for panel in panels for line in panel.lines]
    names = with_n(every)
    axes, said = [], []
    for column, panel in enumerate(panels):
        ax = figure.add_subplot(layout[0, column])
        axes.append(ax)
        panel.draw(ax, names, every)
        panel_title(ax, panel.quantity.name)
        if panel.lines:
            ax.set_ylim(*limits)
            ax.yaxis.set_major_formatter(PERCENT)
            finals = finals_of(cohort, panel.quantity.metric)
            ranked = sorted(finals.rules, key=lambda final: -final.mean if final.n else 0)
            said.append(f"{panel.quantity.name} at epoch {finals.epoch}: {replace(finals, rules=ranked).words}")
    axes[0].set_ylabel("accuracy")
    legend_row(figure.add_subplot(layout[1, :]), axes)
    fine_print(figure, notes)
    shown = "Training accuracy (left) and test accuracy (right) against epochs; both panels share their range."
    look = f"Look at where the lines end: {'; '.join(said)}."
    return figure, caption(cohort, summary, shown, look, notes)
