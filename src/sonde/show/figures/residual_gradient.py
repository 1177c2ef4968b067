"""Figures of the residual study: the gradient on its way back through the layers."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Polygon
from matplotlib.ticker import MaxNLocator

from sonde.analysis.evidence import Evidence
from sonde.analysis.theory import backward_norms
from sonde.core.formatting import gradient_status, gradient_verdict, number
from sonde.metrics import TRAINED
from sonde.show.figures.groups import PAIR_MODELS, Pair, at_start, by_layer, moment, pair_of
from sonde.show.figures.marks import draw_dots, draw_panel, draw_rings, draw_theory, layer_axis, log_axis, log_limits
from sonde.show.figures.series import Curves, Floats, Series, caption, curves
from sonde.show.figures.style import (
    COLOR,
    DOUBLE,
    FAINT,
    INK,
    footnotes,
    legend_above,
    legend_row,
    new_figure,
    panel_grid,
    panel_title,
)

_LABEL_SPAN = 4  # layers that a written value covers

# Of the highway, in data units
_MOST_BLOCKS = 24
_THICKEST = 0.62
_LANE = -0.85  # where the identity path lies below the blocks
_VISIBLE = 0.02  # of the thickest: a thinner arrow is drawn as a dotted hairline

_CHAIN = r"\dfrac{\partial\mathcal{L}}{\partial x_1}=\dfrac{\partial\mathcal{L}}{\partial x_L}\;"
_PRODUCTS = {
    "plain_mlp": r"\prod_{i=1}^{L-1}\,\dfrac{\partial x_{i+1}}{\partial x_i}",
    "res_mlp": r"\prod_{i=1}^{L-1}\left(1+\dfrac{\partial f_i}{\partial x_i}\right)",
}


@dataclass(frozen=True)
class BackwardFlow:
    """Gradient norms at every layer, and the same relative to the last layer, per run and then over seeds."""

    norms: Curves
    relative: Curves
    start: dict[str, Series]  # the norms at initialisation, if they are stored
    theory: dict[str, Floats]  # the norms that random weights give at layers 1 … L; empty if they are not known

    @property
    def when(self) -> str:
        """When the norms were measured."""
        return moment(self.norms.rows)

    def ratio(self, model: str) -> float:
        """Gradient norm at layer 1 relative to the last layer."""
        return float(self.relative[model].mean[0])

    def theory_factor(self, model: str) -> float:
        """The factor per layer of the norms that random weights give; NaN if they are not known."""
        return _factor(self.theory[model]) if model in self.theory else math.nan

    def words(self, model: str) -> str:
        """What one layer and all of them together do to the gradient: "×1.02 per layer, ×1.5 over 19 layers"."""
        layers, factor = self.relative[model].x.size - 1, _factor(self.relative[model].mean)
        if math.isnan(factor):
            return "factor per layer undefined"
        return f"×{number(factor, 3)} per layer, ×{number(self.ratio(model))} over {layers} layer{'s' * (layers != 1)}"

    @property
    def sentence(self) -> str:
        """What the layers do to the gradient of each network."""
        return "; ".join(f"{line.label}: {self.words(line.key)}" for line in self.relative.lines)


def _factor(norms: Floats) -> float:
    """What one layer multiplies by on the way from the last norm back to the first: a geometric mean over layers."""
    layers = norms.size - 1
    return float((norms[0] / norms[-1]) ** (1 / layers)) if layers > 0 and norms[-1] > 0 else math.nan


def backward_flow(pair: Pair) -> BackwardFlow:
    """The gradient norms of the last epoch; relative norms are undefined if the last layer's norm is 0."""
    norms = by_layer(pair, "preact_grad_norm")
    last = norms.rows.filter(layer=pair.depth).select("run", last="value", last_defined="defined")
    ratio = norms.rows.join(last, on="run", how="left").with_columns(
        defined=pl.col("defined") & pl.col("last_defined").fill_null(False) & (pl.col("last") > 0),
        value=pl.col("value") / pl.col("last"),
    )
    ratio = ratio.with_columns(value=pl.when("defined").then("value").otherwise(float("nan")))
    relative = curves(pair, ratio, "layer", range(1, pair.depth + 1))
    return BackwardFlow(norms, relative, at_start(pair, "preact_grad_norm"), _theory(pair, norms.rows))


def _theory(pair: Pair, rows: pl.DataFrame) -> dict[str, Floats]:
    """Norms for the identity, whose gradient at the output is known: 2(h_L − h_0)/(Nd), N samples of width d."""
    width, samples = pair.runs["width"][0], max(rows["samples"].drop_nulls().to_list(), default=0)
    if pair.alpha is None or not pair.identity or width is None or samples < 1:
        return {}
    linear = pair.runs["output"][0] == "linear"
    norms = {m: backward_norms(m == "res_mlp", pair.alpha, pair.depth, linear_output=linear) for m in PAIR_MODELS}
    return {model: 2 / math.sqrt(width * samples) * np.array(of_model) for model, of_model in norms.items()}


def draw_gradient_flow(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 6: the gradient coming back, as its norm at every layer."""
    pair = pair_of(evidence)
    flow = backward_flow(pair)
    norms = flow.norms
    words = {line.key: gradient_verdict(flow.ratio(line.key)) for line in norms.lines}
    theory = {line.key: flow.theory.get(line.key, np.array([])) for line in norms.lines}
    notes = norms.gaps(log=True)

    figure = new_figure(DOUBLE, 3.4, pair.title(f"Gradient coming back, {flow.when}", norms.summary))
    (panels,), legend = panel_grid(figure, 1, 2, share_y=True)
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
            _write_end_value(ax, dots, theory[dots.key], limits, last=last)
        panel_title(ax, dots.label, words[dots.key])
        layer_axis(ax, pair.depth)
    panels[0].set_ylabel(TRAINED["preact_grad_norm"].label)
    legend_row(legend, panels)
    footnotes(figure, notes)
    shown = (
        f"L2 norm of the gradient of the batch's mean loss with respect to each layer's linear output z, {flow.when}."
    )
    others = ["the values at initialisation (rings)"] * bool(flow.start) + [
        "what a wide network has at initialisation (line: the gradient of the identity's own loss, which contains h_L "
        "and so is not independent of the stream)"
    ] * bool(flow.theory)
    beside = f", beside {' and '.join(others)}" if others else ""
    result = "; ".join(f"{pair.labels[model]}: {text}" for model, text in words.items())
    look = f"Look from the last layer back to the first{beside}. {result}."
    return figure, caption(pair, norms.summary, shown, look, notes, marks="dots")


def _write_end_value(ax: Axes, dots: Series, theory: Floats, limits: tuple[float, float], *, last: bool) -> None:
    """Write the value of the first or the last layer above its dot, clear of dots and theory."""
    at, near = (-1, slice(-_LABEL_SPAN, None)) if last else (0, slice(_LABEL_SPAN))
    y = dots.shown(log=True)
    if np.isnan(y[at]):
        turn = 90 if np.isnan(dots.mean[at]) else 0
        style: dict[str, Any] = {"rotation": turn, "color": FAINT, "fontsize": 7, "ha": "center"}
        ax.text(dots.x[at], 0.08, number(dots.mean[at]), transform=ax.get_xaxis_transform(), **style)
        return
    tops = np.fmax(y, dots.band(log=True)[1])
    height = _label_height(float(np.nanmax(tops[near])), theory[near], limits)
    leader = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0}
    style = {"ha": "right" if last else "left", "fontsize": 7, "color": INK}
    style["arrowprops"] = leader | {"relpos": (int(last), 0)}
    ax.annotate(number(dots.mean[at]), (dots.x[at], tops[at]), xytext=(dots.x[at], height), **style)


def _label_height(top: float, theory: Floats, limits: tuple[float, float]) -> float:
    """Just above the dots if the label fits below the theory, else above both."""
    span = limits[1] / limits[0]
    gap, text = span**0.02, span**0.07
    fits = not theory.size or top * gap * text < theory.min()
    return float(gap * (top if fits else max(top, theory.max())))


def draw_highway_concept(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 7: the gradient highway.  Every arrow is as thick as the gradient measured at its layer."""
    pair = pair_of(evidence)
    flow = backward_flow(pair)
    notes = flow.relative.gaps(log=False)
    figure = new_figure(DOUBLE, 3.2, pair.title(f"Gradient highway, {flow.when}", flow.relative.summary))
    heights = [np.ptp(_chain_extent(model == "res_mlp")) for model in PAIR_MODELS]
    for ax, model in zip(figure.subplots(2, 1, height_ratios=heights), PAIR_MODELS, strict=True):
        line, factor = flow.relative[model], flow.theory_factor(model)
        _draw_chain(ax, line, highway=model == "res_mlp")
        theory = "" if math.isnan(factor) else f" (theory at init ×{number(factor, 3)} per layer)"
        heading = f"{line.label}: {gradient_status(flow.ratio(model))}, {flow.words(model)}{theory}"
        ax.set_title(heading, color=INK)
    key = (
        "Arrow thickness is linear in the gradient norm measured at the layer it reaches, relative to the "
        f"largest of its chain; dotted: less than {_VISIBLE:.0%} of that. Numbers: norm relative to the last layer."
    )
    footnotes(figure, [key, *notes])
    shown = (
        f"The gradient on its way back from the loss, {flow.when}: through the blocks of the plain "
        f"network, and along the identity path of the residual one. {key}"
    )
    way = "from the loss back to layer 1 (geometric mean over layers)"
    look = f"Look at how the arrows change {way}: {flow.sentence}."
    return figure, caption(pair, flow.relative.summary, shown, look, notes)


def _draw_chain(ax: Axes, line: Series, *, highway: bool) -> None:
    """Draw blocks from layer 1 to the loss, and the gradient flowing back through them or past them."""
    depth, largest = line.x.size, np.nanmax(line.mean, initial=0)
    shown = np.unique(np.linspace(1, depth, min(depth, _MOST_BLOCKS)).round().astype(int))
    width = _THICKEST * line.mean / largest if largest > 0 else np.full(depth, np.nan)
    color = COLOR[line.key]
    lane = _LANE if highway else 0.0
    for at, layer in enumerate(shown, 1):
        _draw_block(ax, at, 0, str(layer), color)
        if highway:
            _draw_branch(ax, at, lane, color)
        start, end = (at + 1.04, at + 0.36) if highway else (at + 0.71, at + 0.29)
        _draw_arrow(ax, start, end, lane, width[layer - 1], color, layer)
    ends = (-0.1, shown.size + 1.46) if highway else (-0.1, shown.size + 1.1)
    ax.plot(ends if highway else (ends[0], 1), [lane, lane], color=FAINT, linewidth=0.6, zorder=0)
    for x, text in zip(ends, ("input", "loss"), strict=True):
        _draw_block(ax, x, lane, text, FAINT, half=0.38)
    for at in sorted({0, shown.size - 1, *range(4, shown.size - 2, 5)}):
        value = line.mean[shown[at] - 1]
        text = "undefined" if np.isnan(value) else f"×{number(value)}"
        ax.text(at + 1, lane - 0.42, text, ha="center", va="top", fontsize=7, color=INK)
    ax.set_xlim(-0.55, shown.size + 1.9)
    ax.set_ylim(*_chain_extent(highway))
    ax.axis("off")


def _chain_extent(highway: bool) -> tuple[float, float]:
    """Lower and upper end of a chain, in the units both chains share."""
    return (_LANE if highway else 0.0) - 0.75, 0.4


def _draw_block(ax: Axes, x: float, y: float, text: str, color: str, half: float = 0.27) -> None:
    style = "round,pad=0,rounding_size=0.08"
    outline: dict[str, Any] = {"facecolor": "white", "edgecolor": color, "linewidth": 0.8, "zorder": 3}
    ax.add_patch(FancyBboxPatch((x - half, y - 0.28), 2 * half, 0.56, boxstyle=style, **outline))
    ax.text(x, y, text, ha="center", va="center_baseline", fontsize=5.5, color=INK, zorder=4)


def _draw_branch(ax: Axes, x: float, lane: float, color: str) -> None:
    """Draw a block's branch: it leaves the lane on the left and is added back on the right."""
    for side in (-0.2, 0.2):
        ax.plot([x + side, x + side], [lane, -0.28], color=FAINT, linewidth=0.6, zorder=1)
    ax.plot(x + 0.2, lane, "o", color="white", markersize=5, markeredgecolor=color, markeredgewidth=0.7, zorder=5)
    ax.plot(x + 0.2, lane, "+", color=color, markersize=3.4, markeredgewidth=0.7, zorder=6)


def _draw_arrow(ax: Axes, start: float, end: float, y: float, width: float, color: str, layer: int) -> None:
    if np.isnan(width):
        ax.plot([(start + end) / 2], [y], "x", color=FAINT, markersize=4)
        return
    if width < _VISIBLE * _THICKEST:
        ax.plot([end, start], [y, y], color=color, linewidth=0.7, linestyle=(0, (1, 1.4)), zorder=2)
        return
    neck, half, shaft = end + 0.45 * (start - end), width / 2, 0.3 * width
    upper = [(start, y + shaft), (neck, y + shaft), (neck, y + half), (end, y)]
    lower = [(neck, y - half), (neck, y - shaft), (start, y - shaft)]
    ax.add_patch(Polygon(upper + lower, facecolor=color, edgecolor="none", zorder=2, gid=f"arrow {layer}"))


def draw_chain_rule(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 8: the chain rule.  Measured products of per-layer factors beside the mathematics."""
    pair = pair_of(evidence)
    flow = backward_flow(pair)
    notes = flow.relative.gaps(log=True)
    figure = new_figure(DOUBLE, 3.5, pair.title(f"Chain rule, {flow.when}", flow.relative.summary))
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    _draw_cumulative(left, flow)
    legend_above(left, 2)
    _write_products(right, flow)
    footnotes(figure, notes)
    beside = ", beside what the identity's gradient does in a wide network at initialisation" * bool(flow.theory)
    shown = (
        f"Left: gradient norm at each layer's linear output relative to the last layer's, {flow.when}: "
        f"the cumulative product of the measured per-layer factors from the loss backward{beside}. "
        "Right: the two products."
    )
    look = f"Look at the slopes (geometric mean over layers): {flow.sentence}."
    return figure, caption(pair, flow.relative.summary, shown, look, notes)


def _draw_cumulative(ax: Axes, flow: BackwardFlow) -> None:
    """Draw the gradient's scale from the last layer back: measured, and in theory at initialisation."""
    draw_panel(ax, [replace(line, x=line.x[-1] - line.x) for line in flow.relative.lines], log=True)
    extents = flow.relative.extents(log=True)
    for model, norms in flow.theory.items():
        product: Floats = norms[::-1] / norms[-1]
        label = f"{flow.relative[model].label}, theory at init"
        ax.plot(np.arange(norms.size), product, color=COLOR[model], linewidth=1, linestyle=(0, (1, 1.2)), label=label)
        extents.append(product)
    log_axis(ax, log_limits(*extents))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("layers back from the last")
    ax.set_ylabel("gradient norm relative to the last layer")


def _write_products(ax: Axes, flow: BackwardFlow) -> None:
    """Write the two products, with what was measured of each."""
    ax.axis("off")
    ax.set(xlim=(0, 1), ylim=(0, 1))
    for model, top in zip(PAIR_MODELS, (1.0, 0.47), strict=True):
        measured = f"measured: {flow.words(model)}"
        if not math.isnan(factor := flow.theory_factor(model)):
            start = _factor(flow.start[model].mean) if model in flow.start else math.nan
            before = "" if math.isnan(start) else f"measured ×{number(start, 3)}, "
            measured += f"\nat init: {before}theory ×{number(factor, 3)} per layer"
        ax.text(0, top, flow.relative[model].label, color=COLOR[model], weight="bold", va="top")
        ax.text(0.02, top - 0.19, rf"${_CHAIN}{_PRODUCTS[model]}$", color=INK, fontsize=9.5, va="center")
        ax.text(0, top - 0.32, measured, color=INK, fontsize=7.5, va="top", linespacing=1.4)
