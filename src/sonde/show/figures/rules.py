"""Figures 24 to 27, of every rule of the field: accuracy on two networks, credit by depth, backward matrices.

V is the matrix that stands in place of a weight matrix W on the way back.
"""

from dataclasses import replace

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from sonde.analysis.evidence import Evidence, NoData
from sonde.metrics import CONTROLS, TRAINED
from sonde.show.figures import summary
from sonde.show.figures.caption import caption, merge_notes, missing_seeds, n_text
from sonde.show.figures.cohort import Cohort, cohort_of
from sonde.show.figures.diagnostics import DOTTED, by_layer
from sonde.show.figures.marks import draw_panel, say_empty
from sonde.show.figures.scales import epoch_axis, layer_axis, linear_limits
from sonde.show.figures.series import Curves, common_epoch, curves, latest, line_notes, with_n
from sonde.show.figures.style import DOUBLE, FAINT, fine_print, legend_row, new_figure, panel_title

MATRICES = {metric: f"{TRAINED[metric].symbol}, mean over blocks" for metric in ("weight_alignment", "weight_ratio")}


def draw_residual_mlp(evidence: Evidence) -> tuple[Figure, str]:
    return summary.draw(evidence.of(model="residual_mlp"))


def draw_conv_net(evidence: Evidence) -> tuple[Figure, str]:
    return summary.draw(evidence.of(model="conv_net"))


def draw_credit(evidence: Evidence) -> tuple[Figure, str]:
    """Rules that go back through matrices in place of the weights on the left, the others on the right."""
    cohort = cohort_of(evidence.of(model="residual_mlp"))
    rows = cohort.evidence.metric("credit_cosine").filter(~pl.col("rule").is_in(["bp", "frozen"]))
    if not rows["defined"].any():
        raise NoData(f"no defined credit_cosine rows in {cohort.source}")
    chosen, notes = latest(rows, common_epoch(rows))
    aligned = cohort.evidence.metric("weight_alignment").filter("defined")["rule"].unique().to_list()
    by_matrices = pl.col("rule").is_in(aligned)
    parts = {
        "through matrices in place of W": chosen.filter(by_matrices),
        "straight to every state": chosen.filter(~by_matrices),
    }
    shown = {title: curves(cohort, part, "layer", range(cohort.depth + 1)) for title, part in parts.items()}
    notes += [note for one in shown.values() for note in line_notes(one.lines, log=False, unit="layers")]
    present = replace(cohort, labels={k: v for k, v in cohort.labels.items() if k in set(chosen["rule"])})
    notes += missing_seeds(present, chosen)
    when = f"epoch {chosen['epoch'][0]}"
    null = cohort.evidence.metric("credit_cosine/null").filter(pl.col("epoch") == chosen["epoch"][0])
    chance = {
        title: curves(cohort, null.filter(pl.col("rule").is_in(part["rule"])), "layer", range(cohort.depth + 1))
        for title, part in parts.items()
    }
    figure, counts = _panels(present, shown, f"Credit by depth, {cohort.setting}, {when}", chance)
    for ax in figure.axes[:2]:
        layer_axis(ax, cohort.depth, first=0, zero="0")
        ax.axhline(0, color=FAINT, linewidth=0.6)
    fine_print(figure, notes)
    said = "; ".join(by_layer(line) for one in shown.values() for line in one.lines)
    text = (
        f"Mean cosine between each rule's credit and the BP gradient at every state, {when}; BP's own is 1, and at the "
        "last state several rules send the exact gradient. Dotted and grey, for each rule: what chance scores in its "
        "place. Skip connections carry credit past the matrices, so on the left that is high, too: what counts is "
        "how far a rule lies above it."
    )
    return figure, caption(present, counts, text, f"Look at the first states: {said}.", notes)


def draw_alignment(evidence: Evidence) -> tuple[Figure, str]:
    """cos(V, W) and ‖V‖/‖W‖ of the rules that have a V."""
    cohort = cohort_of(evidence.of(model="residual_mlp"))
    of_blocks = {metric: _over_blocks(cohort.evidence.metric(metric)) for metric in MATRICES}
    if not any(rows.height for rows in of_blocks.values()):
        raise NoData(f"no defined weight_alignment rows in {cohort.source}")
    trained = {rule for rows in of_blocks.values() for rule in rows["rule"]}
    present = replace(cohort, labels={k: v for k, v in cohort.labels.items() if k in trained})
    epochs = sorted({epoch for rows in of_blocks.values() for epoch in rows["epoch"]})
    shown = {MATRICES[metric]: curves(present, rows, "epoch", epochs) for metric, rows in of_blocks.items()}
    tagged = [(note, title) for title, one in shown.items() for note in line_notes(one.lines, log=False)]
    notes = merge_notes(tagged, shown)
    figure, counts = _panels(present, shown, f"Backward matrices, {cohort.setting}, {cohort.epochs} epochs")
    for ax, one in zip(figure.axes, shown.values(), strict=False):
        if one.lines:
            epoch_axis(ax, one.lines)
    fine_print(figure, notes)
    text = (
        "Cosine between the weight matrices W of the blocks and the matrices V in their place on the way back (left), "
        "and how large V is against W (right): means over all matrices of all blocks, against epochs."
    )
    found, sizes = (
        ", ".join(f"{line.label} {line.mean[0]:z.2f} to {line.mean[-1]:z.2f}" for line in one.lines)
        for one in shown.values()
    )
    look = f"Look at which V finds W: {found}. Sizes, of which several lie on one another: {sizes}."
    return figure, caption(present, counts, text, look, notes)


def _over_blocks(rows: pl.DataFrame) -> pl.DataFrame:
    """The mean over blocks of every run and epoch; a run with an undefined block has none there."""
    kept = [name for name in rows.columns if name not in ("layer", "value", "defined", "reason", "samples")]
    return (
        rows.group_by(kept, maintain_order=True)
        .agg(value=pl.col("value").mean(), defined=pl.col("defined").all())
        .filter("defined")
    )


def _panels(
    cohort: Cohort, shown: dict[str, Curves], title: str, chance: dict[str, Curves] | None = None
) -> tuple[Figure, pl.DataFrame]:
    """Two panels, and what their lines stand on; a legend below each, or one below both that have the same lines."""
    counts = pl.concat([one.summary.select("rule", "n") for one in shown.values()])
    figure = new_figure(DOUBLE, 3.4 if chance is None else 3.9, f"{title}, {n_text(cohort, counts)}")
    layout = figure.add_gridspec(2, 2, height_ratios=(1, 0.08 if chance is None else 0.24))
    names = with_n([line for one in shown.values() for line in one.lines])
    for column, (about, one) in enumerate(shown.items()):
        ax = figure.add_subplot(layout[0, column])
        panel_title(ax, about)
        if not one.lines:
            say_empty(ax, "no rule of this kind")
            continue
        null = [] if chance is None else chance[about].lines
        for line in null:
            ax.plot(line.x, line.mean, color=FAINT, linewidth=0.9, linestyle=DOTTED, zorder=1.8)
        draw_panel(ax, one.lines, log=False, names=names)
        if null:
            ax.plot([], [], color=FAINT, linewidth=0.9, linestyle=DOTTED, label=CONTROLS["null"])
        extents = [*one.extents(log=False), *(line.mean for line in null), np.array([0.0, 1.0])]
        ax.set_ylim(*linear_limits(*extents))
    panels = figure.axes[:2]
    if chance is None:
        legend_row(figure.add_subplot(layout[1, :]), panels)
    else:
        for column, ax in enumerate(panels):
            legend_row(figure.add_subplot(layout[1, column]), [ax], share=0.45)
    return figure, counts
