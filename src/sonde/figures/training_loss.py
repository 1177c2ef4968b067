"""Figure 1: training loss against steps, plain and residual."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.figures.caption import caption
from sonde.figures.marks import draw_panel
from sonde.figures.pair import Pair, by_step, loss_ends, pair_of
from sonde.figures.scales import log_axis, log_limits
from sonde.figures.series import Curves
from sonde.figures.style import FAINT, SINGLE, footnotes, legend_above, new_figure
from sonde.runs.evidence import Evidence


def draw(evidence: Evidence) -> tuple[Figure, str]:
    pair = pair_of(evidence)
    losses = by_step(pair)
    verdicts = loss_ends(pair, losses.rows).verdicts.values()
    notes = losses.gaps(log=True, unit="steps")

    figure = new_figure(SINGLE, 3.4, pair.title("Training loss", losses.summary))
    ax = figure.add_subplot()
    draw_losses(ax, losses, pair)
    legend_above(ax, 3)
    footnotes(figure, [*verdicts, *notes])
    shown = f"Training loss ({pair.loss} of each batch) against optimiser steps."
    look = f"Look at where each curve ends: {'; '.join(verdicts)}."
    return figure, caption(pair, losses.summary, shown, look, notes)


def draw_losses(ax: Axes, losses: Curves, pair: Pair) -> None:
    """Loss curves on a log axis, beside the loss of predicting zero, where that is known."""
    trivial = pair.trivial_loss
    draw_panel(ax, losses.lines, log=True)
    extents = losses.extents(log=True)
    if trivial is not None:
        dots = (0, (1, 1.5))
        ax.axhline(trivial, color=FAINT, linewidth=0.8, linestyle=dots, label="predicting zero", zorder=1)
        extents.append(np.array([trivial]))
    log_axis(ax, log_limits(*extents))
    ax.set_xlabel("optimiser step")
    ax.set_ylabel(f"batch loss ({'MSE' if pair.loss == 'mean squared error' else pair.loss})")
