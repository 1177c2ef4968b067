"""Figure 7: the gradient highway.  Every arrow is as thick as the gradient measured at its layer."""

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Polygon

from sonde.analysis.evidence import Evidence
from sonde.core.formatting import gradient_status, number
from sonde.show.figures.caption import caption
from sonde.show.figures.pair import MODELS, Backward, backward, pair_of
from sonde.show.figures.series import Floats, Series
from sonde.show.figures.style import COLOR, DOUBLE, FAINT, INK, footnotes, new_figure

MOST_BLOCKS = 24
THICKEST = 0.62  # data units
LANE = -0.85  # of the highway below its blocks
VISIBLE = 0.02  # of the thickest: a thinner arrow is drawn as a dotted hairline


def draw(evidence: Evidence) -> tuple[Figure, str]:
    pair = pair_of(evidence)
    flow = backward(pair)
    notes = flow.relative.gaps(log=False)
    figure = new_figure(DOUBLE, 3.2, pair.title(f"Gradient highway, {flow.when}", flow.relative.summary))
    heights = [np.ptp(_extent(model == "res_mlp")) for model in MODELS]
    top, bottom = figure.subplots(2, 1, height_ratios=heights)
    for ax, model in zip((top, bottom), MODELS, strict=True):
        draw_chain(ax, flow.relative[model], highway=model == "res_mlp")
        ax.set_title(_heading(flow, model), color=INK)
    key = (
        "Arrow thickness is linear in the gradient norm measured at the layer it reaches, relative to the "
        f"largest of its chain; dotted: less than {VISIBLE:.0%} of that. Numbers: norm relative to the last layer."
    )
    footnotes(figure, [key, *notes])
    shown = (
        f"The gradient on its way back from the loss, {flow.when}: through the blocks of the plain "
        f"network, and along the identity path of the residual one. {key}"
    )
    way = "from the loss back to layer 1 (geometric mean over layers)"
    look = f"Look at how the arrows change {way}: {flow.sentence}."
    return figure, caption(pair, flow.relative.summary, shown, look, notes)


def _heading(flow: Backward, model: str) -> str:
    factor = flow.theory_factor(model)
    theory = "" if math.isnan(factor) else f" (theory at init ×{number(factor, 3)} per layer)"
    return f"{flow.relative[model].label}: {gradient_status(flow.ratio(model))}, {flow.words(model)}{theory}"


def thicknesses(line: Series) -> Floats:
    """Arrow thickness at every layer, linear in the mean norm; NaN where that is undefined."""
    largest = np.nanmax(line.mean, initial=0)
    return THICKEST * line.mean / largest if largest > 0 else np.full(line.mean.size, np.nan)


def draw_chain(ax: Axes, line: Series, *, highway: bool) -> None:
    """Blocks from layer 1 to the loss, and the gradient flowing back through them or past them."""
    depth = line.x.size
    shown = np.unique(np.linspace(1, depth, min(depth, MOST_BLOCKS)).round().astype(int))
    width = thicknesses(line)
    color = COLOR[line.key]
    lane = LANE if highway else 0.0
    for at, layer in enumerate(shown, 1):
        _block(ax, at, 0, str(layer), color)
        if highway:
            _branch(ax, at, lane, color)
        start, end = (at + 1.04, at + 0.36) if highway else (at + 0.71, at + 0.29)
        _arrow(ax, start, end, lane, width[layer - 1], color, layer)
    ends = (-0.1, shown.size + 1.46) if highway else (-0.1, shown.size + 1.1)
    ax.plot(ends if highway else (ends[0], 1), [lane, lane], color=FAINT, linewidth=0.6, zorder=0)
    for x, text in zip(ends, ("input", "loss"), strict=True):
        _block(ax, x, lane, text, FAINT, half=0.38)
    for at in sorted({0, shown.size - 1, *range(4, shown.size - 2, 5)}):
        value = line.mean[shown[at] - 1]
        text = "undefined" if np.isnan(value) else f"×{number(value)}"
        ax.text(at + 1, lane - 0.42, text, ha="center", va="top", fontsize=7, color=INK)
    ax.set_xlim(-0.55, shown.size + 1.9)
    ax.set_ylim(*_extent(highway))
    ax.axis("off")


def _extent(highway: bool) -> tuple[float, float]:
    """Lower and upper end of a chain, in the units both chains share."""
    return (LANE if highway else 0.0) - 0.75, 0.4


def _block(ax: Axes, x: float, y: float, text: str, color: str, half: float = 0.27) -> None:
    style = "round,pad=0,rounding_size=0.08"
    outline: dict[str, Any] = {"facecolor": "white", "edgecolor": color, "linewidth": 0.8, "zorder": 3}
    ax.add_patch(FancyBboxPatch((x - half, y - 0.28), 2 * half, 0.56, boxstyle=style, **outline))
    ax.text(x, y, text, ha="center", va="center_baseline", fontsize=5.5, color=INK, zorder=4)


def _branch(ax: Axes, x: float, lane: float, color: str) -> None:
    """The block's branch: off the lane on its left, added back to it on its right."""
    for side in (-0.2, 0.2):
        ax.plot([x + side, x + side], [lane, -0.28], color=FAINT, linewidth=0.6, zorder=1)
    ax.plot(x + 0.2, lane, "o", color="white", markersize=5, markeredgecolor=color, markeredgewidth=0.7, zorder=5)
    ax.plot(x + 0.2, lane, "+", color=color, markersize=3.4, markeredgewidth=0.7, zorder=6)


def _arrow(ax: Axes, start: float, end: float, y: float, width: float, color: str, layer: int) -> None:
    if np.isnan(width):
        ax.plot([(start + end) / 2], [y], "x", color=FAINT, markersize=4)
        return
    if width < VISIBLE * THICKEST:
        ax.plot([end, start], [y, y], color=color, linewidth=0.7, linestyle=(0, (1, 1.4)), zorder=2)
        return
    neck, half, shaft = end + 0.45 * (start - end), width / 2, 0.3 * width
    upper = [(start, y + shaft), (neck, y + shaft), (neck, y + half), (end, y)]
    lower = [(neck, y - half), (neck, y - shaft), (start, y - shaft)]
    ax.add_patch(Polygon(upper + lower, facecolor=color, edgecolor="none", zorder=2, gid=f"arrow {layer}"))
