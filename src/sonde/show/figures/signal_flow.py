"""Figure 5: the signal going up, as the standard deviation at the input and at every layer."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.analysis.evidence import Evidence
from sonde.analysis.theory import INPUT_STD, preactivation_stds
from sonde.core.formatting import HEALTHY_STD, number
from sonde.metrics import TRAINED
from sonde.show.figures.caption import caption
from sonde.show.figures.marks import draw_dots, draw_theory
from sonde.show.figures.pair import MODELS, Pair, at_start, by_layer, moment, pair_of, signal_words
from sonde.show.figures.scales import layer_axis, log_axis, log_limits
from sonde.show.figures.series import Floats, Series
from sonde.show.figures.style import (
    DOUBLE,
    FAINT,
    INK,
    bar_panels,
    footnotes,
    legend_row,
    new_figure,
    panel_title,
)

AT_START = "at initialisation"


def draw(evidence: Evidence) -> tuple[Figure, str]:
    """A row of panels before training, with the theory, where it is stored; and one of the last epoch."""
    pair = pair_of(evidence)
    stds = by_layer(pair, "activation_std")
    rows = {moment(stds.rows): {line.key: line for line in stds.lines}}
    if start := at_start(pair, "activation_std"):
        rows = {AT_START: start} | rows
    theory = {model: theory_line(pair, model) for model in MODELS} if AT_START in rows else {}
    words = {when: {model: signal_words(pair, line) for model, line in lines.items()} for when, lines in rows.items()}
    notes = stds.gaps(log=True)

    title = f"Signal going up, {' and '.join(rows)}"
    figure = new_figure(DOUBLE, 0.9 + 2.5 * len(rows), pair.title(title, stds.summary))
    grid, legend = bar_panels(figure, len(rows))
    extents = [line.extent(log=True) for lines in rows.values() for line in lines.values()]
    known = [INPUT_STD, HEALTHY_STD] if pair.identity else [HEALTHY_STD]
    limits = log_limits(np.array(known), *extents, *theory.values())
    for panels, (when, lines) in zip(grid, rows.items(), strict=True):
        for ax, model in zip(panels, MODELS, strict=True):
            if model in lines:
                expected = theory.get(model) if when == AT_START else None
                draw_signal(ax, pair, lines[model], limits, expected)
                panel_title(ax, f"{pair.labels[model]}, {when}", words[when][model])
            layer_axis(ax, pair.depth, first=0 if pair.identity else 1)
        panels[0].set_ylabel(TRAINED["activation_std"].label)
    legend_row(legend, [ax for panels in grid for ax in panels])
    footnotes(figure, notes)
    return figure, caption(pair, stds.summary, _shown(pair, rows), _look(pair, words, theory), notes, marks="dots")


def draw_signal(ax: Axes, pair: Pair, dots: Series, limits: tuple[float, float], theory: Floats | None) -> None:
    """Dots of every layer beside the input, the healthy threshold and, where it holds, the theory."""
    log_axis(ax, limits)
    if pair.identity:
        ax.plot(0, INPUT_STD, "D", color=FAINT, markersize=4, linestyle="none", label="input, 1/√3")
    healthy = f"healthy threshold, {HEALTHY_STD}"
    ax.axhline(HEALTHY_STD, color=INK, linewidth=0.8, linestyle=(0, (6, 2)), label=healthy)
    if theory is not None:
        draw_theory(ax, dots.x, theory)
    draw_dots(ax, dots)


def theory_line(pair: Pair, model: str) -> Floats:
    """What random weights give at layers 1 … L; empty where the weight scale or the input's spread is not known."""
    if pair.alpha is None or not pair.identity:
        return np.array([])
    return np.array(preactivation_stds(model == "res_mlp", pair.alpha, pair.depth))


def _shown(pair: Pair, rows: Mapping[str, object]) -> str:
    beside = f", beside that of the input, 1/√3 = {number(INPUT_STD, 3)} for U(−1, 1)" if pair.identity else ""
    return (
        f"Standard deviation of each layer's linear output over batch and units together, {' and '.join(rows)} "
        f"(biases that differ between units count in it){beside}."
    )


def _look(pair: Pair, words: Mapping[str, Mapping[str, str]], theory: Mapping[str, Floats]) -> str:
    drawn = any(line.size for line in theory.values())
    before = ", and before training at how close they lie to the theory of wide networks" if drawn else ""
    said = "; ".join(
        f"{pair.labels[model]} {when}: {verdict}"
        for when, of_models in words.items()
        for model, verdict in of_models.items()
    )
    return f"Look at which dots fall below the healthy threshold of {HEALTHY_STD}{before}. {said}."
