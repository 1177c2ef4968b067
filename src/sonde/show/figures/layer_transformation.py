"""Figure 9: one input vector on its way through both networks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import FixedLocator, MaxNLocator

from sonde.analysis.evidence import Evidence, NoData
from sonde.core.formatting import number
from sonde.metrics import TRAINED
from sonde.show.figures.caption import caption, seeds_text
from sonde.show.figures.pair import MODELS, Pair, moment, pair_of
from sonde.show.figures.scales import (
    layer_axis,
    log_axis,
    log_limits,
    signed,
    symlog_ticks,
    wide_scale,
    wide_threshold,
)
from sonde.show.figures.series import Floats
from sonde.show.figures.style import COLOR, DOUBLE, INK, LINE, MARKER, footnotes, legend_above, new_figure

UNITS_SHOWN = 32
STATE = r"^state\[(\d+)\]$"


def draw(evidence: Evidence) -> tuple[Figure, str]:
    states = states_of(pair_of(evidence))
    pair = states.pair
    title = f"{pair.title(f'One input vector {states.when}', states.counts)} ({seeds_text(pair)})"
    figure = new_figure(DOUBLE, 5.2, title)
    (norm, path), maps = figure.subplots(2, 2)
    notes = state_notes(states)
    draw_norms(norm, states)
    notes += draw_paths(path, states)
    notes += draw_maps(figure, list(maps), states)
    footnotes(figure, notes)
    units = states.layers[MODELS[0]].shape[1]
    shown = (
        f"The hidden state of one input vector at the input and after every layer, {states.when}: L2 norm over "
        f"all {units} units, path of units 0 and 1, and heat maps of the first {min(UNITS_SHOWN, units)} units "
        "under one colour scale."
    )
    ends = []
    for model in MODELS:
        first, last = states.norms(model)[[0, -1]]
        ends.append(f"{pair.labels[model]} {number(first)} at the input, {number(last)} at layer {pair.depth}")
    look = f"Look at how much of the input is left at the top: norm of {'; '.join(ends)}."
    return figure, caption(pair, states.counts, shown, look, notes)


@dataclass(frozen=True)
class States:
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
    def counts(self) -> pl.DataFrame:
        return pl.DataFrame({"model": MODELS, "n": [1] * len(MODELS)})

    @property
    def same_input(self) -> bool:
        plain, residual = (self.layers[model][0] for model in MODELS)
        return plain.shape == residual.shape and np.allclose(plain, residual, equal_nan=True)


def states_of(pair: Pair) -> States:
    """The states of the first seed that has them in both networks, at the last epoch with any."""
    rows = pair.evidence.rows.filter(pl.col("metric").str.contains(STATE))
    if rows.is_empty():
        raise NoData(f"no hidden states of a single input (state[0], state[1], …) in {pair.source}")
    rows = rows.filter(pl.col("epoch") == pl.col("epoch").max())
    if not rows["defined"].any():
        raise NoData(f"every hidden state in {pair.source} is undefined")
    runs = pair.runs.join(rows.select("run").unique(), on="run", how="semi")
    seeds = [set(runs.filter(model=model)["seed"]) for model in MODELS]
    shared = sorted(seeds[0] & seeds[1], key=lambda seed: (seed is None, seed))
    if not shared:
        raise NoData(f"no seed with the hidden states of both networks in {pair.source}")
    chosen = runs.filter(pl.col("seed").eq_missing(pl.lit(shared[0], dtype=pl.Int64)))
    chosen = chosen.sort("model", "run").unique("model", keep="first", maintain_order=True)
    layers = {model: _matrix(pair, rows, chosen.filter(model=model)["run"][0]) for model in MODELS}
    if min(matrix.shape[1] for matrix in layers.values()) < 2:
        raise NoData(f"hidden states of fewer than two units in {pair.source}")
    shown = replace(pair, evidence=Evidence(rows, chosen, pair.source))
    return States(shown, layers, moment(rows))


def _matrix(pair: Pair, rows: pl.DataFrame, run: str) -> Floats:
    states = rows.filter(run=run).with_columns(unit=pl.col("metric").str.extract(STATE).cast(pl.Int64))
    matrix = np.full((pair.depth + 1, max(states["unit"], default=-1) + 1), np.nan)
    states = states.filter("defined")
    matrix[states["layer"].to_numpy(), states["unit"].to_numpy()] = states["value"].to_numpy()
    return matrix


def draw_norms(ax: Axes, states: States) -> None:
    """L2 norm of the state per layer."""
    for model, label in states.pair.labels.items():
        norms = states.norms(model)
        y = np.where(norms > 0, norms, np.nan)
        style: dict[str, Any] = {"color": COLOR[model], "linestyle": LINE[model], "marker": MARKER[model]}
        ax.plot(np.arange(y.size), y, label=label, **style)
    log_axis(ax, log_limits(*(states.norms(model) for model in MODELS)))
    layer_axis(ax, states.pair.depth, first=0)
    ax.set_ylabel("L2 norm of h")
    legend_above(ax)


def draw_paths(ax: Axes, states: States) -> list[str]:
    """Units 0 and 1 of the state from the input (open) to the last layer (filled)."""
    paths = states.units(2)
    for model, path in paths.items():
        color, marker = COLOR[model], MARKER[model]
        ax.plot(*path.T, color=color, linewidth=0.9, marker=".", markersize=2.5, linestyle=LINE[model])
        ax.plot(*path[-1], marker, markersize=6, color=color)
        start = INK if states.same_input else color
        ax.plot(*path[0], "o", markersize=6, markerfacecolor="white", markeredgecolor=start)
    ax.plot([], [], "o", markersize=5, markerfacecolor="white", markeredgecolor=INK, label="start: input")
    ax.plot([], [], "o", markersize=5, color=INK, label=f"end: layer {states.pair.depth}")
    axes = zip((ax.xaxis, ax.yaxis), (0, 1), strict=True)
    thresholds = [wide_scale(axis, [path[:, unit] for path in paths.values()]) for axis, unit in axes]
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


def draw_maps(figure: Figure, panels: Sequence[Axes], states: States) -> list[str]:
    """Layer × unit heat maps under one colour scale that contains both networks."""
    shown = states.units(UNITS_SHOWN)
    threshold = wide_threshold(list(shown.values()))
    norm = shared_norm(list(shown.values()), threshold)
    colors = matplotlib.colormaps["RdBu_r"].with_extremes(bad="#BDBDBD")
    images = [_map(ax, shown[model], colors, norm) for ax, model in zip(panels, MODELS, strict=True)]
    for ax, model in zip(panels, MODELS, strict=True):
        top = shown[model][-1]
        largest = "undefined" if np.isnan(top).all() else f"≤ {number(float(np.nanmax(np.abs(top))))}"
        label = states.pair.labels[model]
        ax.set_title(f"{label}: |h| {largest} at layer {states.pair.depth}", color=INK)
        layer_axis(ax, states.pair.depth, first=0)
        ax.set_ylabel(f"unit (first {shown[model].shape[1]})")
    bar = figure.colorbar(images[0], ax=list(panels), label=TRAINED["state"].label, pad=0.015, aspect=18)
    bar.outline.set_visible(False)
    if threshold is None:
        return []
    bar.ax.yaxis.set_major_locator(FixedLocator(symlog_ticks(*images[0].get_clim(), threshold)))
    bar.ax.yaxis.set_major_formatter(signed())
    bar.ax.yaxis.set_minor_locator(FixedLocator([]))
    return [f"Colours: linear within ±{number(threshold)}, logarithmic beyond."]


def _map(ax: Axes, matrix: Floats, colors: matplotlib.colors.Colormap, norm: Normalize) -> AxesImage:
    ax.grid(False)
    return ax.imshow(matrix.T, cmap=colors, norm=norm, aspect="auto", origin="lower", interpolation="nearest")


def shared_norm(matrices: list[Floats], threshold: float | None) -> Normalize:
    """Symmetric about 0 up to the largest magnitude; symmetric-log beyond the threshold, if any."""
    largest = max(float(np.nanmax(np.abs(matrix), initial=0)) for matrix in matrices) or 1.0
    if threshold is None:
        return Normalize(-largest, largest)
    return SymLogNorm(threshold, vmin=-largest, vmax=largest)


def state_notes(states: States) -> list[str]:
    """States that were drawn anew, what is not drawn, and why."""
    notes = _drawn_anew(states.pair.runs)
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


def _drawn_anew(runs: pl.DataFrame) -> list[str]:
    """Files may hold no states: `states_seed` is the seed of the networks that stand in."""
    seeds = set(runs["states_seed"].drop_nulls()) if "states_seed" in runs.columns else set()
    return [
        f"States are not in the files: networks of this configuration were drawn anew with seed {seed}."
        for seed in sorted(seeds)
    ]
