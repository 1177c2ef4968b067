"""Figure 6: the gradient coming back, as its norm at every layer."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.figures.backward import backward
from sonde.figures.marks import Floats, Series, draw_bars, draw_theory, gap_notes, layer_axis, series
from sonde.figures.residual import MODELS, Pair, last_rows, moment, over_depth, pair_of, weights_text
from sonde.figures.scales import log_axis, log_limits
from sonde.figures.style import (
    DOUBLE,
    FAINT,
    INK,
    bar_panels,
    footnotes,
    legend_row,
    new_figure,
    panel_title,
)
from sonde.figures.words import caption, missing_seeds, n_text
from sonde.runs.evidence import Evidence
from sonde.theory import backward_factor
from sonde.verdicts import gradient_verdict, number

LABEL_SPAN = 4  # layers a written value is wide


def draw(evidence: Evidence) -> tuple[Figure, str]:
    pair = pair_of(evidence)
    rows = last_rows(pair, "preact_grad_norm")
    summary = over_depth(pair, rows)
    flow = backward(pair)
    bars = [series(summary, model, pair.labels[model]) for model in MODELS]
    words = {model: gradient_verdict(flow.ratio(model)) for model in MODELS}
    theory = {bar.key: theory_line(pair, bar) for bar in bars}
    notes = [note for part in bars for note in gap_notes(part, log=True)] + missing_seeds(pair, rows)

    title = f"Gradient coming back, {moment(rows)}, {weights_text(pair)}, {n_text(pair, summary)}"
    figure = new_figure(DOUBLE, 3.4, title)
    panels, legend = bar_panels(figure)
    low, high = log_limits(*(bar.extent(log=True) for bar in bars), *theory.values())
    limits = low, high * (high / low) ** 0.08  # room for the values above the bars
    for ax, bar in zip(panels, bars, strict=True):
        draw_panel(ax, bar, theory[bar.key], limits)
        panel_title(ax, bar.label, words[bar.key])
        layer_axis(ax, pair.depth)
    panels[0].set_ylabel("gradient norm ‖∂loss/∂z‖₂")
    legend_row(legend, panels)
    footnotes(figure, ["Log axis: bars have no zero to start from, read their tops.", *notes])
    shown = (
        "L2 norm of the gradient of the batch's mean loss with respect to each layer's linear output z, "
        f"{moment(rows)}. Log axis: read the tops of the bars."
    )
    said = "; ".join(f"{pair.labels[model]}: {words[model]}" for model in MODELS)
    look = (
        "Look from the last layer back to the first, beside the theory at initialisation, which starts at "
        f"the measured last layer and multiplies by α (plain) or √(1 + α²) (residual) per layer. {said}."
    )
    return figure, caption(pair, summary, shown, look, notes)


def theory_line(pair: Pair, bars: Series) -> Floats:
    """The measured norm of the last layer, carried back by the factor random weights give."""
    last = bars.shown(log=True)[-1]
    if pair.alpha is None or np.isnan(last):
        return np.array([])
    factor = backward_factor(bars.key == "res_mlp", pair.alpha)
    return np.array(last * factor ** (pair.depth - bars.x))


def draw_panel(ax: Axes, bars: Series, theory: Floats, limits: tuple[float, float]) -> None:
    """Gradient norms as bars with the values of the first and the last layer, beside the theory."""
    log_axis(ax, limits)
    draw_bars(ax, bars, floor=limits[0])
    draw_theory(ax, bars.x, theory)
    name_end(ax, bars, theory, limits, last=False)
    if bars.x.size > 1:
        name_end(ax, bars, theory, limits, last=True)


def name_end(ax: Axes, bars: Series, theory: Floats, limits: tuple[float, float], *, last: bool) -> None:
    """Write the value of the first or the last layer above its bar, clear of bars and theory."""
    at, near = (-1, slice(-LABEL_SPAN, None)) if last else (0, slice(LABEL_SPAN))
    y = bars.shown(log=True)
    if np.isnan(y[at]):
        turn = 90 if np.isnan(bars.mean[at]) else 0
        style: dict[str, Any] = {"rotation": turn, "color": FAINT, "fontsize": 7, "ha": "center"}
        ax.text(bars.x[at], 0.08, number(bars.mean[at]), transform=ax.get_xaxis_transform(), **style)
        return
    tops = np.fmax(y, bars.band(log=True)[1])
    height = label_height(float(np.nanmax(tops[near])), theory[near], limits)
    leader = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0}
    ax.annotate(
        number(bars.mean[at]),
        (bars.x[at], tops[at]),
        xytext=(bars.x[at], height),
        ha="right" if last else "left",
        fontsize=7,
        color=INK,
        arrowprops=leader | {"relpos": (int(last), 0)},
    )


def label_height(top: float, theory: Floats, limits: tuple[float, float]) -> float:
    """Just above the bars if the label fits below the theory, else above both."""
    span = limits[1] / limits[0]
    gap, text = span**0.02, span**0.07
    fits = not theory.size or top * gap * text < theory.min()
    return float(gap * (top if fits else max(top, theory.max())))
