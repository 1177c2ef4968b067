"""Figures 2 to 4: a quantity of every layer against depth, plain and residual."""

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from sonde.analysis.evidence import Evidence
from sonde.core.formatting import gradient_verdict, number
from sonde.metrics import TRAINED
from sonde.show.figures.caption import caption
from sonde.show.figures.marks import draw_panel
from sonde.show.figures.pair import Pair, backward, by_layer, moment, pair_of, signal_words
from sonde.show.figures.scales import layer_axis, log_axis, log_limits, wide_scale
from sonde.show.figures.series import Series
from sonde.show.figures.style import FAINT, SINGLE, footnotes, legend_above, new_figure


def gradient_magnitude(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 2."""
    return _profile(
        evidence,
        metric="preact_grad_norm",
        title="Gradient magnitude",
        shown="L2 norm of the gradient of the batch's mean loss with respect to each layer's linear output z",
        words=lambda pair, line: gradient_verdict(backward(pair).ratio(line.key)),
    )


def activation_mean(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 3."""
    return _profile(
        evidence,
        metric="activation_mean",
        title="Activation mean",
        shown="Mean of each layer's linear output over batch and units",
        words=lambda pair, line: _largest_mean(line),
    )


def activation_std(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 4."""
    return _profile(
        evidence,
        metric="activation_std",
        title="Activation spread",
        shown="Standard deviation of each layer's linear output over batch and units together "
        "(biases that differ between units count in it)",
        words=signal_words,
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
    shown: str,
    words: Callable[[Pair, Series], str],
) -> tuple[Figure, str]:
    """On a log axis, or for a signed quantity on one that says where it is linear."""
    known = TRAINED[metric]
    pair, log = pair_of(evidence), known.log
    profile = by_layer(pair, metric)
    when = moment(profile.rows)
    notes = profile.gaps(log=log)

    figure = new_figure(SINGLE, 3.5, pair.title(f"{title} {when}", profile.summary))
    ax = figure.add_subplot()
    if not log:
        ax.axhline(0, color=FAINT, linewidth=0.6)
    draw_panel(ax, profile.lines, log=log)
    if log:
        log_axis(ax, log_limits(*profile.extents(log=True)))
    else:
        threshold = wide_scale(ax.yaxis, profile.extents(log=False))
        if threshold is not None:
            notes.append(f"Axis linear within ±{number(threshold)}, logarithmic beyond.")
    ax.set_ylabel(known.label)
    layer_axis(ax, pair.depth)
    legend_above(ax)
    said = [f"{line.label}: {words(pair, line)}" for line in profile.lines]
    footnotes(figure, [*said, *notes])
    look = f"Look at how the lines change with depth: {'; '.join(said)}."
    return figure, caption(pair, profile.summary, f"{shown}, {when}.", look, notes)
