"""Figure 16: how far the first weight of every block moved from its initial value, per rule."""

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from sonde.analysis.evidence import Evidence, NoData
from sonde.core.formatting import number
from sonde.metrics import TRAINED
from sonde.show.figures.caption import caption, missing_seeds, n_text
from sonde.show.figures.cohort import cohort_of
from sonde.show.figures.marks import draw_panel
from sonde.show.figures.scales import FLATTENED, layer_axis, log_axis, log_limits
from sonde.show.figures.series import Series, common_epoch, curves, latest, line_notes, with_n
from sonde.show.figures.style import COLUMN, fine_print, legend_row, new_figure

DRIFT = r"^drift\[blocks\.(\d+)\.w1\.weight\]$"


def draw(evidence: Evidence) -> tuple[Figure, str]:
    cohort = cohort_of(evidence)
    named = cohort.evidence.rows.filter(pl.col("metric").str.contains(DRIFT))
    rows = named.with_columns(layer=pl.col("metric").str.extract(DRIFT).cast(pl.Int64))
    rows = rows.join(cohort.runs, on="run", how="inner", suffix="_of_run")
    if not rows["defined"].any():
        raise NoData(f"no drift of blocks.0.w1.weight, … in {cohort.source}")
    rows, notes = latest(rows, common_epoch(rows))
    epoch = rows["epoch"][0]
    blocks = max(cohort.depth, *(block + 1 for block in rows["layer"]))
    drift = curves(cohort, rows, "layer", range(blocks))
    lines, summary, log = drift.lines, drift.summary, _needs_log(drift.lines)
    absent = [label for rule, label in cohort.labels.items() if rule not in set(rows["rule"])]
    notes += line_notes(lines, log=log, unit="blocks") + missing_seeds(cohort, rows)
    notes += [f"{label}: no drift recorded." for label in absent]

    title = f"Weight drift, {cohort.setting}, epoch {epoch}, {n_text(cohort, summary)}"
    figure = new_figure(COLUMN, 3.4, title)
    layout = figure.add_gridspec(2, 1, height_ratios=(1, 0.08))
    ax = figure.add_subplot(layout[0])
    draw_panel(ax, lines, log=log, names=with_n(lines))
    if log:
        log_axis(ax, log_limits(*drift.extents(log=True)))
    else:
        every = np.concatenate(drift.extents(log=False))
        top, low = float(np.nanmax(every, initial=0)), float(np.nanmin(every, initial=0))
        ax.set_ylim(low - 0.04 * (top - low or 1), top + 0.06 * (top - low or 1))
    layer_axis(ax, blocks - 1, first=0, zero="0")
    ax.set_xlabel("block")
    ax.set_ylabel(f"{TRAINED['drift'].symbol} of w1")
    legend_row(figure.add_subplot(layout[1]), [ax])
    fine_print(figure, notes)
    shown = f"Relative distance {TRAINED['drift'].symbol} of blocks.l.w1.weight from its initial value, epoch {epoch}."
    return figure, caption(cohort, summary, shown, f"Look at how far each rule moves: {_said(lines)}.", notes)


def _needs_log(lines: list[Series]) -> bool:
    """Whether one rule's drift would be flattened by another's."""
    every = np.concatenate([line.shown(log=True) for line in lines])
    every = every[~np.isnan(every)]
    return bool(every.size and every.max() / every.min() > FLATTENED)


def _said(lines: list[Series]) -> str:
    """The least and the most any block moved, per rule."""
    said = []
    for line in lines:
        moved = line.mean[~np.isnan(line.mean)]
        if moved.size:
            least, most = number(moved.min()), number(moved.max())
            said.append(f"{line.label} {least if least == most else f'{least}–{most}'}")
    return ", ".join(said)
