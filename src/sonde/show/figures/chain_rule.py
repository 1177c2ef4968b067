"""Figure 8: the chain rule.  Measured products of per-layer factors beside the mathematics."""

import math
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sonde.analysis.evidence import Evidence
from sonde.core.formatting import number
from sonde.show.figures.caption import caption
from sonde.show.figures.marks import draw_panel
from sonde.show.figures.pair import MODELS, Backward, backward, pair_of
from sonde.show.figures.scales import log_axis, log_limits
from sonde.show.figures.series import Floats
from sonde.show.figures.style import COLOR, DOUBLE, INK, footnotes, legend_above, new_figure

CHAIN = r"\dfrac{\partial\mathcal{L}}{\partial x_1}=\dfrac{\partial\mathcal{L}}{\partial x_L}\;"
PRODUCTS = {
    "plain_mlp": r"\prod_{i=1}^{L-1}\,\dfrac{\partial x_{i+1}}{\partial x_i}",
    "res_mlp": r"\prod_{i=1}^{L-1}\left(1+\dfrac{\partial f_i}{\partial x_i}\right)",
}


def draw(evidence: Evidence) -> tuple[Figure, str]:
    pair = pair_of(evidence)
    flow = backward(pair)
    notes = flow.relative.gaps(log=True)
    figure = new_figure(DOUBLE, 3.5, pair.title(f"Chain rule, {flow.when}", flow.relative.summary))
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    draw_scale(left, flow)
    legend_above(left, 2)
    draw_products(right, flow)
    footnotes(figure, notes)
    shown = (
        f"Left: gradient norm at each layer's linear output relative to the last layer's, {flow.when}: "
        f"the cumulative product of the measured per-layer factors from the loss backward{_beside(flow)}. "
        "Right: the two products."
    )
    look = f"Look at the slopes (geometric mean over layers): {flow.sentence}."
    return figure, caption(pair, flow.relative.summary, shown, look, notes)


def _beside(flow: Backward) -> str:
    """What else is drawn, where it is known."""
    return ", beside what the identity's gradient does in a wide network at initialisation" if flow.theory else ""


def draw_scale(ax: Axes, flow: Backward) -> None:
    """Cumulative gradient scale from the last layer back, measured and at initialisation in theory."""
    draw_panel(ax, [replace(line, x=line.x[-1] - line.x) for line in flow.relative.lines], log=True)
    extents = flow.relative.extents(log=True)
    for model, norms in flow.theory.items():
        back = np.arange(norms.size, dtype=np.float64)
        product: Floats = norms[::-1] / norms[-1]
        label = f"{flow.relative[model].label}, theory at init"
        ax.plot(back, product, color=COLOR[model], linewidth=1, linestyle=(0, (1, 1.2)), label=label)
        extents.append(product)
    log_axis(ax, log_limits(*extents))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("layers back from the last")
    ax.set_ylabel("gradient norm relative to the last layer")


def draw_products(ax: Axes, flow: Backward) -> None:
    """The two products in mathematics, with what was measured of each."""
    ax.axis("off")
    ax.set(xlim=(0, 1), ylim=(0, 1))
    for model, top in zip(MODELS, (1.0, 0.47), strict=True):
        measured = f"measured: {flow.words(model)}"
        if not math.isnan(factor := flow.theory_factor(model)):
            start = flow.start_factor(model)
            before = "" if math.isnan(start) else f"measured ×{number(start, 3)}, "
            measured += f"\nat init: {before}theory ×{number(factor, 3)} per layer"
        ax.text(0, top, flow.relative[model].label, color=COLOR[model], weight="bold", va="top")
        ax.text(0.02, top - 0.19, rf"${CHAIN}{PRODUCTS[model]}$", color=INK, fontsize=9.5, va="center")
        ax.text(0, top - 0.32, measured, color=INK, fontsize=7.5, va="top", linespacing=1.4)
