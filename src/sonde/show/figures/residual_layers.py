"""Figures of the residual study: what every layer holds, as profiles over depth and for one input vector."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator

from sonde.analysis.evidence import Evidence, NoData
from sonde.analysis.theory import INPUT_STD, preactivation_stds
from sonde.core.formatting import HEALTHY_STD, gradient_verdict, number, signal_verdict
from sonde.metrics import TRAINED
from sonde.show.figures.groups import AT_START, PAIR_MODELS, Pair, at_start, by_layer, moment, pair_of
from sonde.show.figures.marks import (
    draw_dots,
    draw_panel,
    draw_theory,
    layer_axis,
    log_axis,
    log_limits,
    signed_ticks,
    symlog_ticks,
    wide_scale,
    wide_threshold,
)
from sonde.show.figures.residual_gradient import backward_flow, theory_gap
from sonde.show.figures.series import Floats, Series, caption, seeds_text
from sonde.show.figures.style import (
    COLOR,
    DOUBLE,
    FAINT,
    INK,
    LINE,
    MARKER,
    NO_VALUE,
    PAPER,
    SINGLE_PANEL,
    footnotes,
    legend_above,
    legend_row,
    new_figure,
    panel_grid,
    panel_title,
)

_UNITS_SHOWN = 32
_STATE = r"^state\[(\d+)\]$"


def draw_gradient_magnitude(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 2: gradient norm of every layer."""
    shown = "L2 norm of the gradient of the batch's mean loss with respect to each layer's linear output z"

    def words(pair: Pair, line: Series) -> str:
        return gradient_verdict(backward_flow(pair).ratio(line.key))

    return _draw_profile(evidence, "preact_grad_norm", "Gradient magnitude", shown, words)


def draw_activation_mean(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 3: mean linear output of every layer."""
    shown = "Mean of each layer's linear output over batch and units"
    return _draw_profile(evidence, "activation_mean", "Activation mean", shown, _largest_mean)


def draw_activation_std(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 4: standard deviation of the linear output of every layer."""
    shown = (
        "Standard deviation of each layer's linear output over batch and units together "
        "(biases that differ between units count in it)"
    )
    return _draw_profile(evidence, "activation_std", "Activation spread", shown, _signal_words)


def _largest_mean(_: Pair, line: Series) -> str:
    if np.isnan(line.mean).all():
        return "mean undefined"
    layer = int(np.nanargmax(np.abs(line.mean)))
    return f"mean furthest from 0: {number(line.mean[layer])} at layer {layer + 1}"


def _signal_words(pair: Pair, stds: Series) -> str:
    """What becomes of the signal on its way up, compared with the input's spread if that is known."""
    if pair.identity:
        return signal_verdict(stds.mean.tolist(), INPUT_STD)
    return f"{number(stds.mean[0])} at layer 1, {number(stds.mean[-1])} at layer {pair.depth}"


def _draw_profile(
    evidence: Evidence, metric: str, title: str, shown: str, words: Callable[[Pair, Series], str]
) -> tuple[Figure, str]:
    """Draw a metric against depth, on a log axis or, for a signed one, on a linear or symmetric-log axis."""
    known = TRAINED[metric]
    pair, log = pair_of(evidence), known.log
    profile = by_layer(pair, metric)
    when = moment(profile.rows)
    notes = profile.gaps(log=log)

    figure = new_figure(SINGLE_PANEL, 3.5, pair.title(f"{title} {when}", profile.summary))
    ax = figure.add_subplot()
    if not log:
        ax.axhline(0, color=FAINT, linewidth=0.6)
    draw_panel(ax, profile.lines, log=log)
    if log:
        log_axis(ax, log_limits(*profile.extents(log=True)))
    elif (threshold := wide_scale(ax.yaxis, profile.extents(log=False))) is not None:
        notes.append(f"Axis linear within ±{number(threshold)}, logarithmic beyond.")
    ax.set_ylabel(known.label)
    layer_axis(ax, pair.depth)
    legend_above(ax)
    results = [f"{line.label}: {words(pair, line)}" for line in profile.lines]
    footnotes(figure, [*results, *notes])
    return figure, caption(pair, profile.summary, f"{'; '.join(results)}.", f"{shown}, {when}.", notes)


def draw_signal_flow(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 5: the signal going up, as the standard deviation at the input and at every layer.

    A row of panels before training, with the theory, if that is stored; and one of the last epoch.
    """
    pair = pair_of(evidence)
    stds = by_layer(pair, "activation_std")
    rows = {moment(stds.rows): {line.key: line for line in stds.lines}}
    if start := at_start(pair, "activation_std"):
        rows = {AT_START: start} | rows
    theory = {model: _theory_line(pair, model) for model in PAIR_MODELS} if AT_START in rows else {}
    words = {when: {model: _signal_words(pair, line) for model, line in lines.items()} for when, lines in rows.items()}
    for model, line in theory.items():
        if gap := theory_gap(rows[AT_START][model].mean, line):
            words[AT_START][model] += f"; {gap}"
    notes = stds.gaps(log=True)

    title = f"Signal going up, {' and '.join(rows)}"
    figure = new_figure(DOUBLE, 0.9 + 2.5 * len(rows), pair.title(title, stds.summary))
    grid, legend = panel_grid(figure, len(rows), 2, share_y=True)
    extents = [line.extent(log=True) for lines in rows.values() for line in lines.values()]
    known = [INPUT_STD, HEALTHY_STD] if pair.identity else [HEALTHY_STD]
    limits = log_limits(np.array(known), *extents, *theory.values())
    for panels, (when, lines) in zip(grid, rows.items(), strict=True):
        for ax, model in zip(panels, PAIR_MODELS, strict=True):
            if model in lines:
                expected = theory.get(model) if when == AT_START else None
                _draw_signal(ax, pair, lines[model], limits, expected)
                panel_title(ax, f"{pair.labels[model]}, {when}", words[when][model])
            layer_axis(ax, pair.depth, first=0 if pair.identity else 1)
        panels[0].set_ylabel(TRAINED["activation_std"].label)
    legend_row(legend, [ax for panels in grid for ax in panels])
    footnotes(figure, notes)
    beside = f", beside that of the input, 1/√3 = {number(INPUT_STD, 3)} for U(−1, 1)" if pair.identity else ""
    shown = (
        f"Standard deviation of each layer's linear output over batch and units together, {' and '.join(rows)} "
        f"(biases that differ between units count in it){beside}."
    )
    if any(line.size for line in theory.values()):
        shown += " Dotted: the theory of wide networks with random weights, which predicts the initialisation only."
    seen = "; ".join(f"{pair.labels[model]} {when}: {text}" for when, of in words.items() for model, text in of.items())
    return figure, caption(pair, stds.summary, f"{seen}.", shown, notes, marks="dots")


def _draw_signal(ax: Axes, pair: Pair, dots: Series, limits: tuple[float, float], theory: Floats | None) -> None:
    """Draw a dot for every layer beside the input, the healthy threshold and, if it is given, the theory."""
    log_axis(ax, limits)
    if pair.identity:
        ax.plot(0, INPUT_STD, "D", color=FAINT, markersize=4, linestyle="none", label="input, 1/√3")
    healthy = f"healthy threshold, {HEALTHY_STD}"
    ax.axhline(HEALTHY_STD, color=INK, linewidth=0.8, linestyle=(0, (6, 2)), label=healthy)
    if theory is not None:
        draw_theory(ax, dots.x, theory)
    draw_dots(ax, dots)


def _theory_line(pair: Pair, model: str) -> Floats:
    """What random weights give at layers 1 … L; empty if the weight scale or the input's spread is not known."""
    if pair.alpha is None or not pair.identity:
        return np.array([])
    return np.array(preactivation_stds(model == "res_mlp", pair.alpha, pair.depth))


@dataclass(frozen=True)
class _States:
    """The state at layers 0 … L in each network, as layer × unit, from one run of each."""

    pair: Pair  # the two runs shown
    layers: dict[str, Floats]  # NaN where undefined
    when: str

    def norms(self, model: str) -> Floats:
        """L2 norm over all units, per layer."""
        return np.asarray(np.linalg.norm(self.layers[model], axis=1))

    def units(self, first: int) -> dict[str, Floats]:
        """The first few units only."""
        return {model: matrix[:, :first] for model, matrix in self.layers.items()}

    @property
    def same_input(self) -> bool:
        plain, residual = (self.layers[model][0] for model in PAIR_MODELS)
        return plain.shape == residual.shape and np.allclose(plain, residual, equal_nan=True)


def draw_one_input(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 9: one input vector on its way through both networks."""
    states = _states_of(pair_of(evidence))
    pair = states.pair
    counts = pl.DataFrame({"model": PAIR_MODELS, "n": [1] * len(PAIR_MODELS)})
    title = f"{pair.title(f'One input vector {states.when}', counts)} ({seeds_text(pair)})"
    figure = new_figure(DOUBLE, 5.2, title)
    (norm, path), maps = figure.subplots(2, 2)
    notes = _state_notes(states)
    _draw_norms(norm, states)
    notes += _draw_paths(path, states)
    notes += _draw_maps(figure, list(maps), states)
    footnotes(figure, notes)
    units = states.layers[PAIR_MODELS[0]].shape[1]
    shown = (
        f"The hidden state of one input vector at the input and after every layer, {states.when}: L2 norm over "
        f"all {units} units, path of units 0 and 1, and heat maps of the first {min(_UNITS_SHOWN, units)} units "
        "under one colour scale."
    )
    ends = []
    for model in PAIR_MODELS:
        first, last = states.norms(model)[[0, -1]]
        ends.append(f"{pair.labels[model]} {number(first)} at the input, {number(last)} at layer {pair.depth}")
    seen = f"Norm of the hidden state: {'; '.join(ends)}."
    return figure, caption(pair, counts, seen, shown, notes)


def _states_of(pair: Pair) -> _States:
    """The states of the first seed that has them in both networks, at the last epoch with any."""
    rows = pair.evidence.rows_with("state[").filter(pl.col("metric").str.contains(_STATE))
    if rows.is_empty():
        raise NoData(f"no hidden states of a single input (state[0], state[1], …) in {pair.source}")
    rows = rows.filter(pl.col("epoch") == pl.col("epoch").max())
    if not rows["defined"].any():
        raise NoData(f"every hidden state in {pair.source} is undefined")
    runs = pair.runs.join(rows.select("run").unique(), on="run", how="semi")
    seeds = [set(runs.filter(model=model)["seed"]) for model in PAIR_MODELS]
    shared = sorted(seeds[0] & seeds[1], key=lambda seed: (seed is None, seed))
    if not shared:
        raise NoData(f"no seed with the hidden states of both networks in {pair.source}")
    chosen = runs.filter(pl.col("seed").eq_missing(pl.lit(shared[0], dtype=pl.Int64)))
    chosen = chosen.sort("model", "run").unique("model", keep="first", maintain_order=True)
    layers = {model: _matrix(pair, rows, chosen.filter(model=model)["run"][0]) for model in PAIR_MODELS}
    if min(matrix.shape[1] for matrix in layers.values()) < 2:
        raise NoData(f"hidden states of fewer than two units in {pair.source}")
    shown = replace(pair, evidence=Evidence(rows, chosen, pair.source))
    return _States(shown, layers, moment(rows))


def _matrix(pair: Pair, rows: pl.DataFrame, run: str) -> Floats:
    """The states of one run as layer × unit."""
    states = rows.filter(run=run).with_columns(unit=pl.col("metric").str.extract(_STATE).cast(pl.Int64))
    matrix = np.full((pair.depth + 1, max(states["unit"], default=-1) + 1), np.nan)
    states = states.filter("defined")
    matrix[states["layer"].to_numpy(), states["unit"].to_numpy()] = states["value"].to_numpy()
    return matrix


def _draw_norms(ax: Axes, states: _States) -> None:
    """Draw the L2 norm of the state per layer."""
    for model, label in states.pair.labels.items():
        norms = states.norms(model)
        y = np.where(norms > 0, norms, np.nan)
        style: dict[str, Any] = {"color": COLOR[model], "linestyle": LINE[model], "marker": MARKER[model]}
        ax.plot(np.arange(y.size), y, label=label, **style)
    log_axis(ax, log_limits(*(states.norms(model) for model in PAIR_MODELS)))
    layer_axis(ax, states.pair.depth, first=0)
    ax.set_ylabel("L2 norm of h")
    legend_above(ax)


def _draw_paths(ax: Axes, states: _States) -> list[str]:
    """Draw units 0 and 1 of the state from the input (open) to the last layer (filled); return notes on the axes."""
    paths = states.units(2)
    for model, path in paths.items():
        color, marker = COLOR[model], MARKER[model]
        ax.plot(*path.T, color=color, linewidth=0.9, marker=".", markersize=2.5, linestyle=LINE[model])
        ax.plot(*path[-1], marker, markersize=6, color=color)
        start = INK if states.same_input else color
        ax.plot(*path[0], "o", markersize=6, markerfacecolor=PAPER, markeredgecolor=start)
    ax.plot([], [], "o", markersize=5, markerfacecolor=PAPER, markeredgecolor=INK, label="start: input")
    ax.plot([], [], "o", markersize=5, color=INK, label=f"end: layer {states.pair.depth}")
    axes = (ax.xaxis, ax.yaxis)
    thresholds = [wide_scale(axis, [path[:, unit] for path in paths.values()]) for unit, axis in enumerate(axes)]
    if thresholds[0] is None:
        ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.grid(axis="x")
    ax.set(xlabel="unit 0", ylabel="unit 1")
    legend_above(ax)
    return [
        f"Path: unit {unit} linear within ±{number(threshold)}, logarithmic beyond."
        for unit, threshold in enumerate(thresholds)
        if threshold is not None
    ]


def _draw_maps(figure: Figure, panels: Sequence[Axes], states: _States) -> list[str]:
    """Draw layer × unit heat maps under one colour scale that contains both networks; return notes on the scale."""
    shown = states.units(_UNITS_SHOWN)
    threshold = wide_threshold(list(shown.values()))
    largest = max(float(np.nanmax(np.abs(matrix), initial=0)) for matrix in shown.values()) or 1.0
    norm = Normalize(-largest, largest) if threshold is None else SymLogNorm(threshold, vmin=-largest, vmax=largest)
    colors = matplotlib.colormaps["RdBu_r"].with_extremes(bad=NO_VALUE)
    style: dict[str, Any] = {"aspect": "auto", "origin": "lower", "interpolation": "nearest"}
    images = []
    for ax, (model, label) in zip(panels, states.pair.labels.items(), strict=True):
        ax.grid(False)
        images.append(ax.imshow(shown[model].T, cmap=colors, norm=norm, **style))
        top = shown[model][-1]
        size = "undefined" if np.isnan(top).all() else f"≤ {number(float(np.nanmax(np.abs(top))))}"
        ax.set_title(f"{label}: |h| {size} at layer {states.pair.depth}", color=INK)
        layer_axis(ax, states.pair.depth, first=0)
        ax.set_ylabel(f"unit (first {shown[model].shape[1]})")
    bar = figure.colorbar(images[0], ax=list(panels), label=TRAINED["state"].label, pad=0.015, aspect=18)
    bar.outline.set_visible(False)
    if threshold is None:
        return []
    bar.ax.yaxis.set_major_locator(FixedLocator(symlog_ticks(-largest, largest, threshold)))
    bar.ax.yaxis.set_major_formatter(signed_ticks())
    bar.ax.yaxis.set_minor_locator(FixedLocator([]))
    return [f"Colours: linear within ±{number(threshold)}, logarithmic beyond."]


def _state_notes(states: _States) -> list[str]:
    """What is not drawn, and states that are not in the files (`states_seed` is the seed they were drawn with)."""
    runs = states.pair.runs
    seeds = set(runs["states_seed"].drop_nulls()) if "states_seed" in runs.columns else set()
    notes = [
        f"States are not in the files: networks of this configuration were drawn anew with seed {seed}."
        for seed in sorted(seeds)
    ]
    for model, label in states.pair.labels.items():
        undefined = int(np.isnan(states.layers[model]).sum())
        zero = int((states.norms(model) == 0).sum())
        if undefined:
            notes.append(f"{label}: undefined states left as gaps (grey in the maps): {undefined}.")
        if zero:
            notes.append(f"{label}: norm exactly 0 at {zero} layers, which a log axis cannot show.")
    if not states.same_input:
        notes.append("The two networks were given different input vectors.")
    return notes
