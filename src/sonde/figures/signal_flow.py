"""Figure 5: the signal going up, as the standard deviation at the input and at every layer."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.figures.caption import caption
from sonde.figures.marks import draw_dots, draw_theory
from sonde.figures.pair import MODELS, Pair, by_layer, moment, pair_of, signal_words
from sonde.figures.scales import layer_axis, log_axis, log_limits
from sonde.figures.series import Floats, Series, curves
from sonde.figures.style import DOUBLE, FAINT, INK, bar_panels, footnotes, legend_row, new_figure, panel_title
from sonde.metrics import TRAINED
from sonde.runs.evidence import Evidence
from sonde.theory import INPUT_STD, preactivation_stds
from sonde.verdicts import HEALTHY_STD, number


def draw(evidence: Evidence) -> tuple[Figure, str]:
    pair = pair_of(evidence)
    stds = by_layer(pair, "activation_std")
    at_start = pair.evidence.metric("activation_std").filter(epoch=0)  # there may be none
    start = {line.key: line for line in curves(pair, at_start, "layer", range(1, pair.depth + 1)).lines}
    theory = {model: theory_line(pair, model) for model in MODELS}
    words = {line.key: signal_words(pair, line) for line in stds.lines}
    when, notes = moment(stds.rows), stds.gaps(log=True)

    figure = new_figure(DOUBLE, 3.4, pair.title(f"Signal going up, {when}", stds.summary))
    panels, legend = bar_panels(figure)
    extents = [*stds.extents(log=True), *(line.extent(log=True) for line in start.values())]
    known = [INPUT_STD, HEALTHY_STD] if pair.identity else [HEALTHY_STD]
    limits = log_limits(np.array(known), *extents, *theory.values())
    for ax, dots in zip(panels, stds.lines, strict=True):
        log_axis(ax, limits)
        if pair.identity:
            ax.plot(0, INPUT_STD, "D", color=FAINT, markersize=4, linestyle="none", label="input, 1/√3")
        draw_references(ax, dots, theory[dots.key], start.get(dots.key))
        draw_dots(ax, dots)
        panel_title(ax, dots.label, words[dots.key])
        layer_axis(ax, pair.depth, first=0 if pair.identity else 1)
    panels[0].set_ylabel(TRAINED["activation_std"].label)
    legend_row(legend, panels)
    footnotes(figure, notes)
    beside = (
        f", beside that of the input, 1/√3 = {number(INPUT_STD, 3)} for U(−1, 1)" if pair.identity else ""
    )
    shown = (
        f"Standard deviation of each layer's linear output over batch and units together, {when} "
        f"(biases that differ between units count in it){beside}."
    )
    said = "; ".join(f"{pair.labels[model]}: {verdict}" for model, verdict in words.items())
    depart = ", and where they depart from the theory, which holds at initialisation only"
    drawn = depart if any(line.size for line in theory.values()) else ""
    look = f"Look at which dots fall below the healthy threshold of {HEALTHY_STD}{drawn}. {said}."
    return figure, caption(pair, stds.summary, shown, look, notes, marks="dots")


def theory_line(pair: Pair, model: str) -> Floats:
    """What random weights give at layers 1 … L; empty where the weight scale or the input's spread is not known."""
    if pair.alpha is None or not pair.identity:
        return np.array([])
    return np.array(preactivation_stds(model == "res_mlp", pair.alpha, pair.depth))


def draw_references(ax: Axes, dots: Series, theory: Floats, start: Series | None) -> None:
    """The healthy threshold and, where known, the theory and the start."""
    healthy = f"healthy threshold, {HEALTHY_STD}"
    ax.axhline(HEALTHY_STD, color=INK, linewidth=0.8, linestyle=(0, (6, 2)), label=healthy)
    draw_theory(ax, dots.x, theory)
    if start is not None:
        rings: dict[str, Any] = {"markersize": 2.4, "markeredgewidth": 0.5, "markerfacecolor": "white"}
        ax.plot(start.x, start.shown(True), "o", markeredgecolor=INK, label="measured at init", **rings)
