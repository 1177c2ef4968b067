"""Figure 1: training loss against steps, plain and residual."""

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.figures.marks import Series, draw_line, gap_notes, series
from sonde.figures.residual import MODELS, Pair, loss_ends, loss_rows, over_steps, pair_of, weights_text
from sonde.figures.scales import log_axis, log_limits
from sonde.figures.style import FAINT, SINGLE, footnotes, legend_above, new_figure
from sonde.figures.words import caption, missing_seeds, n_text
from sonde.runs.evidence import Evidence
from sonde.spreads import over_seeds
from sonde.verdicts import loss_verdict


def draw(evidence: Evidence) -> tuple[Figure, str]:
    pair = pair_of(evidence)
    rows = loss_rows(pair)
    summary = over_steps(rows)
    lines = [series(summary, model, pair.labels[model], "step") for model in MODELS]
    notes = [note for line in lines for note in gap_notes(line, log=True, unit="steps")]
    notes += missing_seeds(pair, rows)

    figure = new_figure(SINGLE, 3.4, f"Training loss, {weights_text(pair)}, {n_text(pair, summary)}")
    ax = figure.add_subplot()
    draw_losses(ax, lines, pair.trivial_loss)
    legend_above(ax, 3)
    words = verdicts(pair, rows)
    footnotes(figure, [*words.values(), *notes])
    shown = "Training loss (mean squared error of each batch) against optimiser steps."
    look = f"Look at where each curve ends: {'; '.join(words.values())}."
    return figure, caption(pair, summary, shown, look, notes)


def draw_losses(ax: Axes, lines: list[Series], trivial: float | None) -> None:
    """Loss curves on a log axis, beside the loss of predicting zero."""
    for line in lines:
        draw_line(ax, line, log=True)
    extents = [line.extent(log=True) for line in lines]
    if trivial is not None:
        dots = (0, (1, 1.5))
        ax.axhline(trivial, color=FAINT, linewidth=0.8, linestyle=dots, label="predicting zero", zorder=1)
        extents.append(np.array([trivial]))
    log_axis(ax, log_limits(*extents))
    ax.set_xlabel("optimiser step")
    ax.set_ylabel("batch loss (MSE)")


def ends(rows: pl.DataFrame) -> pl.DataFrame:
    """First loss, last loss and reduction of every network, over seeds."""
    return over_seeds(loss_ends(rows), "model", "quantity")


def end(summary: pl.DataFrame, model: str, quantity: str) -> tuple[float, float, int]:
    """Mean, sample standard deviation (NaN for n < 2) and n of one such quantity."""
    mean, std, n = summary.filter(model=model, quantity=quantity).select("mean", "std", "n").row(0)
    return (float("nan") if mean is None else mean), (float("nan") if std is None else std), n


def verdicts(pair: Pair, rows: pl.DataFrame) -> dict[str, str]:
    """Whether each network learned, as a sentence with its numbers."""
    summary = ends(rows)
    return {
        model: f"{pair.labels[model]} "
        + loss_verdict(
            end(summary, model, "reduction")[0], end(summary, model, "final")[0], pair.trivial_loss
        )
        for model in MODELS
    }
