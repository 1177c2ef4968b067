"""Figure 1: training loss against steps, plain and residual."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.analysis.evidence import Evidence
from sonde.core.formatting import number
from sonde.show.figures.caption import caption
from sonde.show.figures.marks import draw_panel
from sonde.show.figures.pair import Pair, by_step, loss_ends, pair_of
from sonde.show.figures.scales import log_axis, log_limits
from sonde.show.figures.series import Curves
from sonde.show.figures.style import COLOR, FAINT, SINGLE, footnotes, legend_above, new_figure


def draw(evidence: Evidence) -> tuple[Figure, str]:
    pair = pair_of(evidence)
    losses = by_step(pair)
    verdicts = loss_ends(pair, losses.rows).verdicts.values()
    notes = [*([pair.floors] if pair.floors else []), *losses.gaps(log=True, unit="steps")]

    figure = new_figure(SINGLE, 3.4, pair.title("Training loss", losses.summary))
    ax = figure.add_subplot()
    draw_losses(ax, losses, pair)
    legend_above(ax, 2)
    footnotes(figure, [*verdicts, *notes])
    shown = f"Training loss ({pair.loss} of each batch) against optimiser steps."
    look = f"Look at where each curve ends (mean of the last tenth of its steps): {'; '.join(verdicts)}."
    return figure, caption(pair, losses.summary, shown, look, notes)


def draw_losses(ax: Axes, losses: Curves, pair: Pair) -> None:
    """Loss curves on a log axis, beside the loss of predicting zero and the lowest possible, where they are known."""
    draw_panel(ax, losses.lines, log=True)
    extents = losses.extents(log=True)
    style: dict[str, Any] = {"linewidth": 0.8, "zorder": 1}
    if pair.trivial_loss is not None:
        ax.axhline(pair.trivial_loss, color=FAINT, linestyle=(0, (1, 1.5)), label="predicting zero", **style)
        extents.append(np.array([pair.trivial_loss]))
    for line in losses.lines:
        if floor := pair.floor(line.key):
            label = f"lowest for {line.label}, {number(floor, 3)}"
            ax.axhline(floor, color=COLOR[line.key], linestyle=(0, (5, 2, 1, 2)), label=label, **style)
            extents.append(np.array([floor]))
    log_axis(ax, log_limits(*extents))
    ax.set_xlabel("optimiser step")
    ax.set_ylabel(f"batch loss ({'MSE' if pair.loss == 'mean squared error' else pair.loss})")
