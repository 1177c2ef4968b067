"""Figures of the studies of controls: every setting at the end of training, and credit and growth by layer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.analysis.evidence import Evidence, NoData
from sonde.core.formatting import accuracy, listed, number
from sonde.core.seed_statistics import summarise
from sonde.metrics import TRAINED
from sonde.show.figures.groups import Lines
from sonde.show.figures.marks import PERCENT, layer_axis, log_axis, log_limits
from sonde.show.figures.series import caption, curves, n_text
from sonde.show.figures.style import (
    COLOR,
    DOUBLE,
    FAINT,
    INK,
    fine_print,
    legend_row,
    new_figure,
    panel_grid,
    rule_rank,
)

_ALL_BLOCKS = "all blocks trained"


@dataclass(frozen=True)
class _Panel:
    """One quantity of every setting: its rows are of the whole network, of the last state, or of layers 1 … L−1."""

    metric: str
    layers: str | None = None  # None, "top" or "deep"
    log: bool = False

    @property
    def title(self) -> str:
        """The label, or the symbol with the layers."""
        known = TRAINED[self.metric]
        if self.layers == "top":
            return str(known.indexed).format(l="L")
        return known.label if self.layers is None else f"{known.symbol}, layers 1 … L−1"

    def values(self, rows: pl.DataFrame) -> pl.DataFrame:
        """run and value at the last epoch; a run with an undefined layer has none."""
        last = rows.filter(pl.col("metric") == self.metric, pl.col("epoch") == pl.col("epochs"))
        if self.layers == "top":
            last = last.filter(pl.col("layer") == pl.col("depth"))
        elif self.layers == "deep":
            last = last.filter(pl.col("layer") > 0, pl.col("layer") < pl.col("depth"))
        found = last.group_by("run", maintain_order=True).agg(
            value=pl.col("value").mean(), defined=pl.col("defined").all()
        )
        return found.filter("defined")


_PANELS = (
    _Panel("test_acc"),
    _Panel("hidden_norm", "top", log=True),
    _Panel("credit_cosine", "deep"),
)
_WITHOUT_CLASSES = (_PANELS[-1], _Panel("rho", "deep"))


def draw_controls(evidence: Evidence) -> tuple[Figure, str]:
    """Test accuracy, ‖h_L‖ and credit cosine of every setting; without classes, cosine and ρ."""
    group = _settings(evidence)
    rows = evidence.rows_with(*(panel.metric for panel in (*_PANELS, *_WITHOUT_CLASSES)))
    rows = rows.join(group.runs, on="run", how="inner", suffix="_of_run")
    panels = _PANELS if rows.filter(metric="test_acc")["defined"].any() else _WITHOUT_CLASSES
    found = {panel: _points(group, panel, panel.values(rows)) for panel in panels}
    if not any(one.n for of_panel in found.values() for one in of_panel.values()):
        raise NoData(f"no defined value of {listed(panel.metric for panel in panels)} in {evidence.source}")
    counts = pl.DataFrame(
        [(line, one.n) for of_panel in found.values() for line, one in of_panel.items() if one.n],
        schema={"line": pl.String, "n": pl.Int64},
        orient="row",
    )
    epochs = group.runs["epochs"][0]
    title = f"At the end of training, {_networks(group.runs)}, {epochs} epochs, {n_text(group, counts)}"
    figure = new_figure(DOUBLE, 0.9 + 0.24 * len(group.labels), title)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    rules = dict(group.runs.select("line", "rule").iter_rows())
    for ax, panel in zip(axes, panels, strict=True):
        _draw(ax, panel, found[panel], rules)
    axes[0].set_yticks(range(len(group.labels)), list(group.labels.values()))
    axes[0].set_ylim(len(group.labels) - 0.5, -0.5)
    geometric = listed(panel.title for panel in panels if panel.log)
    rings = f"Rings: seeds; {geometric} has its geometric mean." if geometric else "Rings: seeds."
    notes = [rings] if (counts["n"] > 1).any() else []
    fine_print(figure, notes)
    shown = f"{listed(panel.title for panel in panels)} of every setting after the last epoch."
    return figure, caption(group, counts, "", shown, notes, marks="dots and rings")


def _settings(evidence: Evidence) -> Lines:
    """A line for every network and rule with its options."""
    runs = evidence.runs.sort("seed", "run")
    if runs.is_empty():
        raise NoData(f"no run in {evidence.source}")
    plain = min(runs["label"].unique(), key=len)
    names = {}
    keys = runs.select("rule", "rule_label", "label", "depth").unique(maintain_order=True)
    ranked = sorted(keys.rows(), key=lambda key: (rule_rank(key[0]), key[0], key[1], key[3], key[2] == plain, key[2]))
    for key in ranked:
        _, rule_label, label, depth = key
        network = str(label).removeprefix(plain).strip(", ") or _ALL_BLOCKS
        parts = [rule_label, *([network] if keys["label"].n_unique() > 1 else [])]
        parts += [f"L = {depth}"] if keys["depth"].n_unique() > 1 else []
        names["/".join(map(str, key))] = ", ".join(parts)
    line = pl.concat_str(*keys.columns, separator="/")
    return Lines(runs.with_columns(line=line), names, _recipe(runs), evidence.source)


def _networks(runs: pl.DataFrame) -> str:
    depths = listed(map(str, sorted(runs["depth"].unique())))
    return f"{min(runs['label'].unique(), key=len)}, L = {depths}, d = {runs['width'][0]}, {runs['task_label'][0]}"


def _recipe(runs: pl.DataFrame) -> str:
    samples, epochs, batch, lr, scale = (runs[name][0] for name in ("samples", "epochs", "batch", "lr", "scale"))
    return (
        f"{_networks(runs)}: {samples:,} training samples, {epochs} epochs, batch {batch}, learning rate {lr:g}, "
        f"{scale} scale"
    )


@dataclass(frozen=True)
class _Point:
    """A setting: the value of each seed, and their mean, on a log axis the geometric one."""

    seeds: list[float]
    mean: float
    std: float = math.nan

    @property
    def n(self) -> int:
        return len(self.seeds)


def _points(group: Lines, panel: _Panel, values: pl.DataFrame) -> dict[str, _Point]:
    of_run = dict(values.select("run", "value").iter_rows())
    found = {}
    for line in group.labels:
        seeds = [of_run[run] for run in group.runs.filter(line=line)["run"] if run in of_run]
        if panel.log:
            seeds = [value for value in seeds if value > 0]
            found[line] = _Point(seeds, math.exp(summarise(map(math.log, seeds)).mean) if seeds else math.nan)
        else:
            over = summarise(seeds)
            found[line] = _Point(seeds, over.mean, over.std)
    return found


def _said(panel: _Panel, one: _Point) -> str:
    return accuracy(one.mean, one.std) if panel.metric == "test_acc" else number(one.mean)


def _draw(ax: Axes, panel: _Panel, found: Mapping[str, _Point], rules: Mapping[str, str]) -> None:
    rings: dict[str, Any] = {"markersize": 2.8, "markerfacecolor": "white", "markeredgewidth": 0.6}
    for row, (line, one) in enumerate(found.items()):
        if not one.n:
            ax.text(0.02, row, "undefined", transform=ax.get_yaxis_transform(), va="center", color=FAINT, fontsize=7)
            continue
        ax.plot([one.mean], [row], "o", color=COLOR[rules[line]], markersize=5)
        if one.n > 1:
            ax.plot(one.seeds, [row] * one.n, "o", markeredgecolor=INK, **rings)
        ax.annotate(
            _said(panel, one),
            (max(one.seeds), row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=6.5,
        )
    shown = np.array([value for one in found.values() for value in one.seeds])
    ax.margins(x=0.35)  # room for the numbers
    if panel.log and shown.size:
        low, high = log_limits(shown)
        log_axis(ax, (low, high * (high / low) ** 0.35), which="x")
    elif panel.metric == "test_acc":
        ax.set_xlim(0, 1.35 * np.max(shown, initial=0.1))
        ax.xaxis.set_major_formatter(PERCENT)
    ax.set_xlabel(panel.title)
    ax.grid(False)
    ax.grid(True, axis="x")
    ax.tick_params(axis="y", length=0)


_AT_INPUT = "credit_at=input"
_BY_LAYER = ("credit_cosine", "growth")


def draw_credit_at_layers(evidence: Evidence) -> tuple[Figure, str]:
    """Cosine at every state and growth over every block, solid with credit at the output, dashed at the input."""
    group = _settings(evidence)
    rows = evidence.rows_with(*_BY_LAYER).join(group.runs, on="run", how="inner", suffix="_of_run")
    rows = rows.filter(pl.col("epoch") == pl.col("epochs"))
    found = {
        metric: curves(
            group, rows.filter(metric=metric), "layer", range(max(rows["depth"].unique()) + (metric != "growth"))
        )
        for metric in _BY_LAYER
        if rows.height
    }
    if not any((one.summary["n"] > 0).any() for one in found.values()):
        raise NoData(f"no defined {' or '.join(_BY_LAYER)} rows of the last epoch in {evidence.source}")
    counts = pl.concat([one.summary.select("line", "n").filter(pl.col("n") > 0) for one in found.values()])
    title = f"Credit at output or input, {_networks(group.runs)}, {group.runs['epochs'][0]} epochs"
    figure = new_figure(DOUBLE, 3.6, f"{title}, {n_text(group, counts)}")
    (axes,), legend = panel_grid(figure, 1, 2, legend=0.3)
    rules = dict(group.runs.select("line", "rule").iter_rows())
    for ax, (metric, one) in zip(axes, found.items(), strict=True):
        for line in one.lines:
            style = (0, (3, 1.5)) if _AT_INPUT in line.label else "-"
            ax.plot(
                line.x, line.mean, "o", linestyle=style, color=COLOR[rules[line.key]], markersize=3, label=line.label
            )
        ax.set_ylabel(TRAINED[metric].label)
        layer_axis(ax, int(group.runs["depth"].max()) - (metric == "growth"), first=0, zero="0")  # type: ignore[arg-type]
        ax.set_xlabel("block" if metric == "growth" else "state")
    if found["growth"].lines:
        log_axis(axes[1], log_limits(*found["growth"].extents(log=True)))
    legend_row(legend, axes)
    notes = [note for one in found.values() for note in one.gaps(log=False)]
    fine_print(figure, notes)
    shown = (
        "Mean cosine between credit and the BP gradient at every state (left), and by what factor each block makes the "
        "state longer (right), after the last epoch. Solid: a block learns from the credit at its output; dashed: from "
        "that at its input."
    )
    grown = " ".join(
        f"{line.label}: at most ×{number(float(np.nanmax(line.mean)))} over a block." for line in found["growth"].lines
    )
    return figure, caption(group, counts, f"Growth of the stream. {grown}", shown, notes)
