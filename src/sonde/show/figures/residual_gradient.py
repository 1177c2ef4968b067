"""Figures of the residual study: the gradient on its way back through the layers."""

import math
from collections.abc import Mapping, Sequence
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
from sonde.core.formatting import gradient_status, gradient_verdict, number, sentence_case
from sonde.metrics import TRAINED
from sonde.show.figures.groups import AT_START, PAIR_MODELS, Pair, at_start, by_layer, moment, pair_of
from sonde.show.figures.marks import draw_dots, draw_panel, draw_theory, layer_axis, log_axis, log_limits
from sonde.show.figures.series import Curves, Floats, Series, caption, curves
from sonde.show.figures.style import (
    COLOR,
    DOUBLE,
    FAINT,
    INK,
    PAPER,
    footnotes,
    legend_row,
    new_figure,
    panel_grid,
    panel_title,
    unbroken,
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
    "res_mlp": r"\prod_{i=1}^{L-1}\left(I+\dfrac{\partial f_i}{\partial x_i}\right)",
}


@dataclass(frozen=True)
class BackwardFlow:
    """Gradient norms at every layer, and the same relative to the last layer, per run and then over seeds."""

    norms: Curves
    relative: Curves
    start: dict[str, Series]  # the norms at initialisation, if they are stored
    began: list[Series]  # the same, relative to the last layer
    theory: dict[str, Floats]  # the norms that random weights give at layers 1 … L; empty if they are not known

    @property
    def when(self) -> str:
        """When the norms were measured."""
        return moment(self.norms.rows)

    def ratio(self, model: str) -> float:
        """Gradient norm at layer 1 relative to the last layer."""
        return float(self.relative[model].mean[0])

    def start_words(self, model: str) -> str:
        """The factor per layer at initialisation, measured and in theory; empty if either is not known."""
        if model not in self.start or model not in self.theory:
            return ""
        measured, theory = (number(_factor(norms), 3) for norms in (self.start[model].mean, self.theory[model]))
        return f"at init ×{measured} per layer, theory ×{theory}"

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
    start = at_start(pair, "preact_grad_norm")
    began = _relative_to_last(pair, pair.evidence.metric("preact_grad_norm").filter(epoch=0)).lines
    return BackwardFlow(norms, _relative_to_last(pair, norms.rows), start, began, _theory(pair, norms.rows))


def _relative_to_last(pair: Pair, rows: pl.DataFrame) -> Curves:
    """Norms of layers 1 … L relative to the last layer's, run by run."""
    last = rows.filter(layer=pair.depth).select("run", last="value", last_defined="defined")
    ratio = rows.join(last, on="run", how="left").with_columns(
        defined=pl.col("defined") & pl.col("last_defined").fill_null(False) & (pl.col("last") > 0),
        value=pl.col("value") / pl.col("last"),
    )
    ratio = ratio.with_columns(value=pl.when("defined").then("value").otherwise(float("nan")))
    return curves(pair, ratio, "layer", range(1, pair.depth + 1))


def _theory(pair: Pair, rows: pl.DataFrame) -> dict[str, Floats]:
    """Norms for the identity, whose gradient at the output is known: 2(h_L − h_0)/(Nd), N samples of width d."""
    width, samples = pair.runs["width"][0], max(rows["samples"].drop_nulls().to_list(), default=0)
    if pair.alpha is None or not pair.identity or width is None or samples < 1:
        return {}
    linear = pair.runs["output"][0] == "linear"
    norms = {m: backward_norms(m == "res_mlp", pair.alpha, pair.depth, linear_output=linear) for m in PAIR_MODELS}
    return {model: 2 / math.sqrt(width * samples) * np.array(of_model) for model, of_model in norms.items()}


def draw_gradient_flow(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 6: the gradient coming back, as its norm at every layer.

    A row of panels at initialisation, with the theory, if that is stored; and one of the last epoch.
    """
    pair = pair_of(evidence)
    flow = backward_flow(pair)
    norms = flow.norms
    rows = {flow.when: {line.key: line for line in norms.lines}}
    if flow.start:
        rows = {AT_START: flow.start} | rows
    theory = flow.theory if AT_START in rows else {}
    words = {when: {model: _flow_words(flow, line, when) for model, line in of.items()} for when, of in rows.items()}
    notes = norms.gaps(log=True)

    title = pair.title(f"Gradient coming back, {' and '.join(rows)}", norms.summary)
    figure = new_figure(DOUBLE, 1.0 + 2.4 * len(rows), title)
    grid, legend = panel_grid(figure, len(rows), 2, share_y=True)
    low, high = log_limits(*(line.extent(log=True) for of in rows.values() for line in of.values()), *theory.values())
    limits = low, high * (high / low) ** 0.08  # room for the values above the dots
    for panels, (when, lines) in zip(grid, rows.items(), strict=True):
        for ax, (model, dots) in zip(panels, lines.items(), strict=True):
            expected = theory.get(model, np.array([])) if when == AT_START else np.array([])
            log_axis(ax, limits)
            draw_theory(ax, dots.x, expected)
            draw_dots(ax, dots)
            for last in (False, True)[: dots.x.size]:
                _write_end_value(ax, dots, expected, limits, last=last)
            panel_title(ax, f"{dots.label}, {when}", words[when][model])
            layer_axis(ax, pair.depth)
        panels[0].set_ylabel(TRAINED["preact_grad_norm"].label)
    legend_row(legend, [ax for panels in grid for ax in panels])
    footnotes(figure, notes)
    seen = "; ".join(f"{pair.labels[model]} {when}: {text}" for when, of in words.items() for model, text in of.items())
    drawn = "L2 norm of the gradient of the batch's mean loss with respect to each layer's linear output z."
    if theory:
        drawn += (
            " Dotted: the theory of wide networks with random weights, for the identity's own loss; its gradient "
            "contains h_L, so it is not independent of the stream. It predicts the initialisation only."
        )
    return figure, caption(pair, norms.summary, f"{seen}.", drawn, notes, marks="dots")


def _flow_words(flow: BackwardFlow, line: Series, when: str) -> str:
    """What becomes of the gradient; at initialisation how far it is from the theory, later how far it has moved."""
    if when == AT_START:
        status = gradient_verdict(float(line.mean[0] / line.mean[-1]) if line.mean[-1] > 0 else math.nan)
        gap = theory_gap(line.mean, flow.theory.get(line.key, np.array([])))
        return f"{status}; {gap}" if gap else status
    status = gradient_verdict(flow.ratio(line.key))
    start = flow.start[line.key].mean[0] if line.key in flow.start else math.nan
    return f"{status}; layer 1 ×{number(line.mean[0] / start)} of init" if start > 0 else status


def theory_gap(measured: Floats, theory: Floats) -> str:
    """The largest factor between the measured values and the theory; empty if there is no theory."""
    if not theory.size or not (measured > 0).any():
        return ""
    known = measured > 0
    apart = float(np.exp(np.abs(np.log(measured[known] / theory[known])).max()))
    return f"within ×{number(apart, 3)} of the theory"


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


def draw_gradient_highway(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 7: the gradient highway.  Every arrow is as thick as the gradient measured at its layer."""
    pair = pair_of(evidence)
    flow = backward_flow(pair)
    notes = flow.relative.gaps(log=False)
    figure = new_figure(DOUBLE, 3.2, pair.title(f"Gradient highway, {flow.when}", flow.relative.summary))
    heights = [np.ptp(_chain_extent(model == "res_mlp")) for model in PAIR_MODELS]
    largest = max(float(np.nanmax(line.mean, initial=0)) for line in flow.relative.lines)
    for ax, model in zip(figure.subplots(2, 1, height_ratios=heights), PAIR_MODELS, strict=True):
        line = flow.relative[model]
        _draw_chain(ax, line, largest, highway=model == "res_mlp")
        start = flow.start_words(model)
        heading = f"{line.label}: {gradient_status(flow.ratio(model))}, {flow.words(model)}"
        ax.set_title(f"{heading} ({start})" if start else heading, color=INK)
    key = (
        "Arrow: as thick as the gradient norm at the layer it reaches, relative to the last layer's; one scale for "
        f"both chains. Dotted: less than {_VISIBLE:.0%} of the thickest. Numbers: the same relative norm."
    )
    footnotes(figure, [key, *notes])
    drawn = (
        f"The gradient on its way back from the loss, {flow.when}: through the blocks of the plain "
        f"network, and along the identity path of the residual one. {key}"
    )
    seen = f"{flow.sentence} (geometric mean over layers)."
    return figure, caption(pair, flow.relative.summary, seen, drawn, notes)


def _draw_chain(ax: Axes, line: Series, largest: float, *, highway: bool) -> None:
    """Draw blocks from layer 1 to the loss, and the gradient flowing back through them or past them.

    `largest` is the value of the thickest arrow.
    """
    depth = line.x.size
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
    outline: dict[str, Any] = {"facecolor": PAPER, "edgecolor": color, "linewidth": 0.8, "zorder": 3}
    ax.add_patch(FancyBboxPatch((x - half, y - 0.28), 2 * half, 0.56, boxstyle=style, **outline))
    ax.text(x, y, text, ha="center", va="center_baseline", fontsize=5.5, color=INK, zorder=4)


def _draw_branch(ax: Axes, x: float, lane: float, color: str) -> None:
    """Draw a block's branch: it leaves the lane on the left and is added back on the right."""
    for side in (-0.2, 0.2):
        ax.plot([x + side, x + side], [lane, -0.28], color=FAINT, linewidth=0.6, zorder=1)
    ax.plot(x + 0.2, lane, "o", color=PAPER, markersize=5, markeredgecolor=color, markeredgewidth=0.7, zorder=5)
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
    """Figure 8: the chain rule.  Measured products of per-layer factors above the mathematics."""
    pair = pair_of(evidence)
    flow = backward_flow(pair)
    notes = flow.relative.gaps(log=True)
    panels = {flow.when: flow.relative.lines}
    if flow.start:
        panels = {AT_START: flow.began} | panels
    title = pair.title(f"Chain rule, {' and '.join(panels)}", flow.relative.summary)
    figure = new_figure(DOUBLE, 5.0, title)
    layout = figure.add_gridspec(3, 2, height_ratios=(1, 0.06, 0.62))
    theory = flow.theory if AT_START in panels else {}
    products = [norms[::-1] / norms[-1] for norms in theory.values()]
    limits = log_limits(*(line.extent(log=True) for lines in panels.values() for line in lines), *products)
    axes: list[Axes] = []
    for column, (when, lines) in enumerate(panels.items()):
        where = layout[0, column] if len(panels) > 1 else layout[0, :]
        axes.append(figure.add_subplot(where, sharey=axes[0] if axes else None))
        _draw_cumulative(axes[-1], lines, theory if when == AT_START else {}, limits)
        gaps = [theory_gap(line.mean, theory[line.key] / theory[line.key][-1]) for line in lines if line.key in theory]
        said = f": {lines[0].label} {gaps[0]}, {lines[1].label} {gaps[1]}" if when == AT_START and gaps else ""
        panel_title(axes[-1], f"{sentence_case(when)}{unbroken(said)}", width=56)
    axes[0].set_ylabel("gradient norm relative to the last layer")
    legend_row(figure.add_subplot(layout[1, :]), axes)
    for column, model in enumerate(PAIR_MODELS):
        _write_product(figure.add_subplot(layout[2, column]), flow, model)
    footnotes(figure, notes)
    dotted = " Dotted: the theory of wide networks with random weights, which predicts the initialisation only."
    drawn = (
        "Above: gradient norm at each layer's linear output relative to the last layer's, the cumulative product of "
        f"the measured per-layer factors from the loss backward.{dotted if theory else ''} Below: the two products."
    )
    seen = f"{sentence_case(flow.when)}, {flow.sentence} (geometric mean over layers)."
    return figure, caption(pair, flow.relative.summary, seen, drawn, notes)


def _draw_cumulative(
    ax: Axes, lines: Sequence[Series], theory: Mapping[str, Floats], limits: tuple[float, float]
) -> None:
    """Draw the gradient's scale from the last layer back, and what the theory says of it."""
    draw_panel(ax, [replace(line, x=line.x[-1] - line.x) for line in lines], log=True)
    for model, norms in theory.items():
        style: dict[str, Any] = {"color": INK, "linewidth": 1, "linestyle": (0, (1, 1.2)), "zorder": 3}
        ax.plot(np.arange(norms.size), norms[::-1] / norms[-1], label="theory at init", gid=f"theory {model}", **style)
    log_axis(ax, limits)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("layers back from the last")


def _write_product(ax: Axes, flow: BackwardFlow, model: str) -> None:
    """Write the product of a network, with what was measured of it."""
    ax.axis("off")
    ax.set(xlim=(0, 1), ylim=(0, 1))
    measured = f"{flow.when}: {flow.words(model)}"
    start = flow.start_words(model)
    ax.text(0, 1, flow.relative[model].label, color=COLOR[model], weight="bold", va="top")
    ax.text(0.02, 0.58, rf"${_CHAIN}{_PRODUCTS[model]}$", color=INK, fontsize=9.5, va="center")
    ax.text(0, 0.22, f"{measured}\n{start}" if start else measured, color=INK, fontsize=7.5, va="top", linespacing=1.4)
