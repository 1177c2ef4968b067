"""Figure 5: the signal going up, as the standard deviation at the input and at every layer."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.figures.marks import Floats, Series, draw_bars, draw_theory, gap_notes, layer_axis, series
from sonde.figures.residual import (
    MODELS,
    Pair,
    initial_rows,
    last_rows,
    moment,
    over_depth,
    pair_of,
    weights_text,
)
from sonde.figures.scales import log_axis, log_limits
from sonde.figures.style import DOUBLE, INK, bar_panels, footnotes, legend_row, new_figure, panel_title
from sonde.figures.words import caption, missing_seeds, n_text
from sonde.runs.evidence import Evidence
from sonde.theory import INPUT_STD, preactivation_stds
from sonde.verdicts import HEALTHY_STD, number, signal_verdict


def draw(evidence: Evidence) -> tuple[Figure, str]:
    pair = pair_of(evidence)
    rows = last_rows(pair, "activation_std")
    summary = over_depth(pair, rows)
    bars = [series(summary, model, pair.labels[model]) for model in MODELS]
    theory = {model: theory_line(pair, model) for model in MODELS}
    start = initial_lines(pair)
    notes = [note for part in bars for note in gap_notes(part, log=True)] + missing_seeds(pair, rows)

    title = f"Signal going up, {moment(rows)}, {weights_text(pair)}, {n_text(pair, summary)}"
    figure = new_figure(DOUBLE, 3.4, title)
    panels, legend = bar_panels(figure)
    extents = [part.extent(log=True) for part in (*bars, *start.values())]
    limits = log_limits(np.array([INPUT_STD, HEALTHY_STD]), *extents, *theory.values())
    for ax, bar in zip(panels, bars, strict=True):
        draw_panel(ax, bar, theory[bar.key], start.get(bar.key), limits)
    panels[0].set_ylabel("standard deviation")
    legend_row(legend, panels)
    footnotes(figure, ["Log axis: bars have no zero to start from, read their tops.", *notes])
    said = "; ".join(f"{bar.label}: {signal_verdict(bar.mean.tolist(), INPUT_STD)}" for bar in bars)
    shown = (
        f"Standard deviation of each layer's linear output over batch and units together, {moment(rows)} "
        "(biases that differ between units count in it), beside that of the input, "
        f"1/√3 = {number(INPUT_STD, 3)} for U(−1, 1). Log axis: read the tops of the bars."
    )
    look = (
        f"Look at which bars fall below the healthy threshold of {HEALTHY_STD}, and where they depart from "
        f"the theory, which holds at initialisation only. {said}."
    )
    return figure, caption(pair, summary, shown, look, notes)


def theory_line(pair: Pair, model: str) -> Floats:
    """What random weights give at layers 1 … L; empty where the weight scale is not recorded."""
    if pair.alpha is None:
        return np.array([])
    return np.array(preactivation_stds(model == "res_mlp", pair.alpha, pair.depth))


def initial_lines(pair: Pair) -> dict[str, Series]:
    """The same at initialisation, for the networks that have it."""
    rows = initial_rows(pair, "activation_std")
    summary = over_depth(pair, rows)
    found = [model for model in MODELS if not rows.filter(model=model).is_empty()]
    return {model: series(summary, model, pair.labels[model]) for model in found}


def draw_panel(
    ax: Axes, bars: Series, theory: Floats, start: Series | None, limits: tuple[float, float]
) -> None:
    """Input and layers as bars, the healthy threshold, the theory and, where known, the start."""
    log_axis(ax, limits)
    draw_bars(ax, bars, floor=limits[0])
    ax.bar(0, INPUT_STD - limits[0], bottom=limits[0], width=0.72, color="#B8B8B8", label="input, 1/√3")
    healthy = f"healthy threshold, {HEALTHY_STD}"
    ax.axhline(HEALTHY_STD, color=INK, linewidth=0.8, linestyle=(0, (6, 2)), label=healthy)
    draw_theory(ax, bars.x, theory)
    if start is not None:
        rings: dict[str, Any] = {"markersize": 2.4, "markeredgewidth": 0.5, "markerfacecolor": "white"}
        ax.plot(start.x, start.shown(True), "o", markeredgecolor=INK, label="measured at init", **rings)
    panel_title(ax, bars.label, signal_verdict(bars.mean.tolist(), INPUT_STD))
    layer_axis(ax, bars.x.size, first=0)
