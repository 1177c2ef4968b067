"""Figure 6: the gradient coming back, as its norm at every layer."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.analysis.evidence import Evidence
from sonde.core.formatting import gradient_verdict, number
from sonde.metrics import TRAINED
from sonde.show.figures.caption import caption
from sonde.show.figures.marks import draw_dots, draw_rings, draw_theory
from sonde.show.figures.pair import backward, pair_of
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

LABEL_SPAN = 4  # layers a written value is wide


def draw(evidence: Evidence) -> tuple[Figure, str]:
    pair = pair_of(evidence)
    flow = backward(pair)
    norms = flow.norms
    words = {line.key: gradient_verdict(flow.ratio(line.key)) for line in norms.lines}
    theory = {line.key: flow.theory.get(line.key, np.array([])) for line in norms.lines}
    notes = norms.gaps(log=True)

    figure = new_figure(DOUBLE, 3.4, pair.title(f"Gradient coming back, {flow.when}", norms.summary))
    (panels,), legend = bar_panels(figure)
    started = [line.extent(log=True) for line in flow.start.values()]
    low, high = log_limits(*norms.extents(log=True), *started, *theory.values())
    limits = low, high * (high / low) ** 0.08  # room for the values above the dots
    for ax, dots in zip(panels, norms.lines, strict=True):
        log_axis(ax, limits)
        draw_theory(ax, dots.x, theory[dots.key])
        if dots.key in flow.start:
            draw_rings(ax, flow.start[dots.key])
        draw_dots(ax, dots)
        for last in (False, True)[: dots.x.size]:
            name_end(ax, dots, theory[dots.key], limits, last=last)
        panel_title(ax, dots.label, words[dots.key])
        layer_axis(ax, pair.depth)
    panels[0].set_ylabel(TRAINED["preact_grad_norm"].label)
    legend_row(legend, panels)
    footnotes(figure, notes)
    shown = (
        f"L2 norm of the gradient of the batch's mean loss with respect to each layer's linear output z, {flow.when}."
    )
    said = "; ".join(f"{pair.labels[model]}: {verdict}" for model, verdict in words.items())
    rings = ["the values at initialisation (rings)"] if flow.start else []
    theory_words = (
        "what a wide network has at initialisation (line: the gradient of the identity's own loss, which contains h_L "
        "and so is not independent of the stream)"
    )
    others = rings + ([theory_words] if flow.theory else [])
    beside = f", beside {' and '.join(others)}" if others else ""
    look = f"Look from the last layer back to the first{beside}. {said}."
    return figure, caption(pair, norms.summary, shown, look, notes, marks="dots")


def name_end(ax: Axes, dots: Series, theory: Floats, limits: tuple[float, float], *, last: bool) -> None:
    """Write the value of the first or the last layer above its dot, clear of dots and theory."""
    at, near = (-1, slice(-LABEL_SPAN, None)) if last else (0, slice(LABEL_SPAN))
    y = dots.shown(log=True)
    if np.isnan(y[at]):
        turn = 90 if np.isnan(dots.mean[at]) else 0
        style: dict[str, Any] = {"rotation": turn, "color": FAINT, "fontsize": 7, "ha": "center"}
        ax.text(dots.x[at], 0.08, number(dots.mean[at]), transform=ax.get_xaxis_transform(), **style)
        return
    tops = np.fmax(y, dots.band(log=True)[1])
    height = label_height(float(np.nanmax(tops[near])), theory[near], limits)
    leader = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0}
    ax.annotate(
        number(dots.mean[at]),
        (dots.x[at], tops[at]),
        xytext=(dots.x[at], height),
        ha="right" if last else "left",
        fontsize=7,
        color=INK,
        arrowprops=leader | {"relpos": (int(last), 0)},
    )


def label_height(top: float, theory: Floats, limits: tuple[float, float]) -> float:
    """Just above the dots if the label fits below the theory, else above both."""
    span = limits[1] / limits[0]
    gap, text = span**0.02, span**0.07
    fits = not theory.size or top * gap * text < theory.min()
    return float(gap * (top if fits else max(top, theory.max())))
