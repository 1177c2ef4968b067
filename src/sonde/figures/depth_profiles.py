"""Figures 2 to 4: a quantity of every layer against depth, plain and residual."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.figures.backward import backward
from sonde.figures.marks import Series, draw_line, gap_notes, layer_axis, series
from sonde.figures.residual import MODELS, Pair, last_rows, moment, over_depth, pair_of, weights_text
from sonde.figures.scales import log_axis, log_limits, wide_scale
from sonde.figures.style import FAINT, SINGLE, footnotes, legend_above, new_figure
from sonde.figures.words import caption, missing_seeds, n_text
from sonde.runs.evidence import Evidence
from sonde.theory import INPUT_STD
from sonde.verdicts import gradient_verdict, number, signal_verdict


def gradient_magnitude(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 2."""
    return _profile(
        evidence,
        metric="preact_grad_norm",
        title="Gradient magnitude",
        ylabel="gradient norm ‖∂loss/∂z‖₂",
        shown="L2 norm of the gradient of the batch's mean loss with respect to each layer's linear output z",
        words=lambda pair, line: gradient_verdict(backward(pair).ratio(line.key)),
        log=True,
    )


def activation_mean(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 3."""
    return _profile(
        evidence,
        metric="activation_mean",
        title="Activation mean",
        ylabel="mean of linear output",
        shown="Mean of each layer's linear output over batch and units",
        words=lambda pair, line: _largest_mean(line),
        log=False,
    )


def activation_std(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 4."""
    return _profile(
        evidence,
        metric="activation_std",
        title="Activation spread",
        ylabel="s.d. of linear output",
        shown="Standard deviation of each layer's linear output over batch and units together "
        "(biases that differ between units count in it)",
        words=lambda pair, line: signal_verdict(line.mean.tolist(), INPUT_STD),
        log=True,
    )


def _largest_mean(line: Series) -> str:
    if np.isnan(line.mean).all():
        return "mean undefined"
    layer = int(np.nanargmax(np.abs(line.mean)))
    return f"mean furthest from 0: {number(line.mean[layer])} at layer {layer + 1}"


def _profile(
    evidence: Evidence,
    *,
    metric: str,
    title: str,
    ylabel: str,
    shown: str,
    words: Callable[[Pair, Series], str],
    log: bool,
) -> tuple[Figure, str]:
    pair = pair_of(evidence)
    rows = last_rows(pair, metric)
    summary = over_depth(pair, rows)
    lines = [series(summary, model, pair.labels[model]) for model in MODELS]
    notes = [note for line in lines for note in gap_notes(line, log=log)] + missing_seeds(pair, rows)

    heading = f"{title} {moment(rows)}, {weights_text(pair)}, {n_text(pair, summary)}"
    figure = new_figure(SINGLE, 3.5, heading)
    ax = figure.add_subplot()
    notes += draw_log_profile(ax, lines) if log else draw_signed_profile(ax, lines)
    ax.set_ylabel(ylabel)
    layer_axis(ax, pair.depth)
    legend_above(ax)
    said = [f"{line.label}: {words(pair, line)}" for line in lines]
    footnotes(figure, [*said, *notes])
    look = f"Look at how the lines change with depth: {'; '.join(said)}."
    return figure, caption(pair, summary, f"{shown}, {moment(rows)}.", look, notes)


def draw_log_profile(ax: Axes, lines: list[Series]) -> list[str]:
    """A positive quantity over depth on a log axis."""
    for line in lines:
        draw_line(ax, line, log=True)
    log_axis(ax, log_limits(*(line.extent(log=True) for line in lines)))
    return []


def draw_signed_profile(ax: Axes, lines: list[Series]) -> list[str]:
    """A signed quantity over depth; symmetric-log, and saying so, where one would flatten the other."""
    ax.axhline(0, color=FAINT, linewidth=0.6)
    for line in lines:
        draw_line(ax, line, log=False)
    threshold = wide_scale(ax.yaxis, [line.extent(log=False) for line in lines])
    return [] if threshold is None else [f"Axis linear within ±{number(threshold)}, logarithmic beyond."]
