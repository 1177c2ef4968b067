"""Figures of the studies of snapshots and of controls: stream and gradient by epoch, and settings side by side."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import matplotlib
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from sonde.analysis.evidence import Evidence, NoData
from sonde.core.formatting import accuracy, listed, number
from sonde.core.seed_statistics import summarise
from sonde.metrics import TRAINED
from sonde.show.figures.groups import NETWORK_FIELDS, TRAINING_FIELDS, Cohort, Lines, check_recipe, cohort_of
from sonde.show.figures.marks import PERCENT, layer_axis, log_axis, log_limits, percent_axis
from sonde.show.figures.panels import (
    ACCURACY,
    BATCH_MEAN_LOSS,
    GRADIENT_2,
    GRADIENT_TOP,
    STREAM_TOP,
    Grid,
    Panel,
    cohorts_of,
    grid_of,
    probe_text,
)
from sonde.show.figures.series import caption, curves, line_notes, n_text
from sonde.show.figures.style import (
    COLOR,
    DOUBLE,
    FAINT,
    INK,
    MARKER,
    SEED_LINE,
    SERIF_PARAMS,
    fine_print,
    legend_entries,
    legend_row,
    new_figure,
    panel_grid,
    panel_title,
    rule_rank,
    unbroken,
)

_TWO_RULES = ("bp", "dfa")
_TWO_COLUMNS = (STREAM_TOP, GRADIENT_2)
_SAME_BUT_LN = tuple(field for field in (*NETWORK_FIELDS, *TRAINING_FIELDS) if field not in ("label", "out_ln"))

_THREE_RULES = ("bp", "fa", "dfa")
_NETWORKS: dict[str, dict[str, object]] = {
    "vit_mini": {"model": "vit_mini"},
    "residual_mlp without terminal LN": {"model": "residual_mlp", "out_ln": False},
    "student_net": {"model": "student_net"},
}
_THREE_COLUMNS = (STREAM_TOP, GRADIENT_TOP, ACCURACY)
_SAME = ("scale", "batch", "lr")
_SAME_ON_A_TASK = ("task_label", "epochs", "steps", "samples")
_LEGEND_ROOM = 0.17  # of the first panel's height, per row of its legend


def draw_stream_by_terminal_ln(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 11: with the terminal LayerNorm above, without it below."""
    names = {True: "residual_mlp with terminal LN", False: "residual_mlp without terminal LN"}
    choose = partial(cohort_of, evidence, rules=_TWO_RULES, model="residual_mlp")
    cohorts, absent = cohorts_of([partial(choose, named=names[ln], out_ln=ln) for ln in names])
    check_recipe(pl.concat([cohort.runs for cohort in cohorts]), _SAME_BUT_LN, free="terminal LN, rule and seed")
    titles = [f"{cohort.network}{', with terminal LN' * bool(cohort.runs['out_ln'][0])}" for cohort in cohorts]
    return _draw_rows(cohorts, absent, titles)


def draw_stream_of_vit(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 12: the same for the vision transformer, at its CLS token."""
    cohort = cohort_of(evidence, rules=_TWO_RULES, model="vit_mini", named="vit_mini")
    return _draw_rows([cohort], [], [cohort.network])


def _draw_rows(cohorts: Sequence[Cohort], absent: list[str], titles: list[str]) -> tuple[Figure, str]:
    """Draw a row of panels per network; a column has one range, so that the rows can be compared."""
    for cohort in cohorts:
        if cohort.depth < 2:
            raise NoData(f"{cohort.network} has {cohort.depth} block, so there is no h_2 to show")
    grid = grid_of(cohorts, _TWO_COLUMNS, _TWO_RULES, absent)

    title = f"Stream and gradient over training, {cohorts[0].setting}, {n_text(grid.group, grid.summary)}"
    figure = new_figure(DOUBLE, 0.95 + 2.15 * len(grid.rows), title)
    axes, legend = panel_grid(figure, len(grid.rows), 2, legend=0.05)
    for column, quantity in enumerate(_TWO_COLUMNS):
        limits = log_limits(*grid.extents(column))
        kind = "median" if quantity is STREAM_TOP else f"median, {BATCH_MEAN_LOSS}"
        for row, panels in enumerate(grid.rows):
            ax, panel = axes[row][column], panels[column]
            panel.draw(ax, grid.names)
            if panel.lines:
                log_axis(ax, limits)
            heading = [titles[row]] if len(grid.rows) > 1 else []
            panel_title(ax, *heading, unbroken(panel.changes), width=54)
            ax.set_ylabel(f"{quantity.symbol} ({kind})")
            if row < len(grid.rows) - 1:
                ax.set_xlabel("")
    legend_row(legend, figure.axes[:-1])
    fine_print(figure, grid.notes)
    drawn = (
        f"Norm of the last hidden state h_L and of the BP gradient at h_2 against epochs, {probe_text(grid.panels)}."
    )
    return figure, caption(grid.group, grid.summary, f"{grid.sentences}.", drawn, grid.notes)


def draw_three_networks(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 13: three architectures under three rules, in the style of a paper.

    Each network has its own task and size, so only what they share is checked between rows.
    """
    choices = [partial(cohort_of, evidence, rules=_THREE_RULES, named=name, **_NETWORKS[name]) for name in _NETWORKS]
    cohorts, absent = cohorts_of(choices)
    runs = pl.concat([cohort.runs for cohort in cohorts])
    check_recipe(runs, _SAME, free="network, rule and seed")
    shared = pl.coalesce("task", "label")  # networks on tasks that are not recorded need not share one
    for _, on_task in runs.group_by(shared, maintain_order=True):
        check_recipe(on_task, _SAME_ON_A_TASK, free="network, rule and seed")
    grid = grid_of(cohorts, _THREE_COLUMNS, _THREE_RULES, absent)
    with matplotlib.rc_context(SERIF_PARAMS):
        return _draw_three_networks(cohorts, grid)


def _draw_three_networks(cohorts: list[Cohort], grid: Grid) -> tuple[Figure, str]:
    rules = dict.fromkeys(label for cohort in cohorts for label in cohort.labels.values())
    networks = f"{len(cohorts)} network{'s' * (len(cohorts) != 1)}"
    title = f"{' · '.join(rules)} on {networks}, {n_text(grid.group, grid.summary)}"
    figure = new_figure(DOUBLE, 0.8 + 1.65 * len(cohorts), title)
    axes = figure.subplots(len(cohorts), len(_THREE_COLUMNS), squeeze=False)
    shared = log_limits(*grid.extents(_THREE_COLUMNS.index(GRADIENT_TOP)))
    for row, cohort in enumerate(cohorts):
        for ax, panel in zip(axes[row], grid.rows[row], strict=True):
            panel.draw(ax, grid.names)
            _scale(ax, panel, shared)
            if row < len(cohorts) - 1:
                ax.set_xlabel("")
        label = [part for text in (cohort.network, cohort.task) for part in textwrap.wrap(text, 16)]
        axes[row, 0].set_ylabel("\n".join(label), weight="bold")
    headings = [STREAM_TOP.symbol, f"{GRADIENT_TOP.symbol} ({BATCH_MEAN_LOSS})", ACCURACY.symbol]
    for ax, heading in zip(axes[0], headings, strict=True):
        ax.set_title(heading, loc="center", color=INK)
    if grid.rows[0][0].lines:
        _draw_legend(axes[0, 0])
    others = {label: handle for label, handle in legend_entries(axes.flat).items() if label not in grid.names.values()}
    if others:  # chance, and the lines of seeds
        axes[0, -1].legend(list(others.values()), list(others), loc="lower right", bbox_to_anchor=(1, 0.12))
    fine_print(figure, grid.notes)
    figure.findobj(Text)  # ticks take their font when they are made: make them now
    drawn = (
        "Norm of the last hidden state h_L, norm of the BP gradient there, and test accuracy, against epochs. "
        f"Norms: {probe_text(grid.panels)}. ‖g_L‖ has one range for all rows."
    )
    return figure, caption(grid.group, grid.summary, f"{grid.sentences}.", drawn, grid.notes)


def _scale(ax: Axes, panel: Panel, shared: tuple[float, float]) -> None:
    """Set log axes for norms, with one range for the gradient, and per cent for accuracy."""
    ax.grid(True, axis="both")
    if not panel.lines:
        return
    if panel.quantity is ACCURACY:
        percent_axis(ax, *panel.extents(), chance=panel.cohort.chance)
    else:
        limits = shared if panel.quantity is GRADIENT_TOP else log_limits(*panel.extents())
        log_axis(ax, limits, mathtext=True)


def _draw_legend(ax: Axes) -> None:
    """Draw the legend inside a panel, whose axis is extended above the data to make room."""
    labels = ax.get_legend_handles_labels()[1]
    columns = len(labels) if sum(map(len, labels)) <= 10 else 1
    low, high = ax.get_ylim()
    share = _LEGEND_ROOM * (-(-len(labels) // columns))
    log_axis(ax, (low, high * (high / low) ** (share / (1 - share))), mathtext=True)
    style: dict[str, Any] = {"borderpad": 0.2, "borderaxespad": 0.2, "handlelength": 2.0}
    style |= {"handletextpad": 0.4, "columnspacing": 0.9, "labelspacing": 0.25}
    ax.legend(loc="upper left", ncols=columns, **style)


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


def _settings(evidence: Evidence, *, by_depth: bool = True) -> Lines:
    """A line for every network and rule with its options; networks of several depths may share one."""
    runs = evidence.runs.sort("seed", "run")
    if runs.is_empty():
        raise NoData(f"no run in {evidence.source}")
    plain = min(runs["label"].unique(), key=len)
    names = {}
    depth_of_line = pl.col("depth") if by_depth else pl.lit(0).alias("depth")
    keyed = runs.select("rule", "rule_label", "label", depth_of_line)
    keys = keyed.unique(maintain_order=True)
    ranked = sorted(keys.rows(), key=lambda key: (rule_rank(key[0]), key[0], key[1], key[3], key[2] == plain, key[2]))
    for key in ranked:
        _, rule_label, label, depth = key
        network = str(label).removeprefix(plain).strip(", ") or _ALL_BLOCKS
        parts = [rule_label, *([network] if keys["label"].n_unique() > 1 else [])]
        parts += [f"L = {depth}"] if keys["depth"].n_unique() > 1 else []
        names["/".join(map(str, key))] = ", ".join(parts)
    line = keyed.select(pl.concat_str(pl.all(), separator="/")).to_series()
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


_DASHES = ("-", (0, (3, 1.5)), (0, (1, 1.2)), (0, (4, 1.2, 1, 1.2)))
"""Of the lines of one rule, by its options."""


def draw_accuracy_by_depth(evidence: Evidence) -> tuple[Figure, str]:
    """Test accuracy after the last epoch against the number of blocks: a line for every rule at several depths."""
    group = _settings(evidence, by_depth=False)
    several = group.runs.filter(pl.col("depth").n_unique().over("line") > 1)
    shown = group.runs if several.is_empty() else several
    labels = {line: label for line, label in group.labels.items() if line in set(shown["line"])}
    alone = [label for line, label in group.labels.items() if line not in labels]
    group = replace(group, runs=shown, labels=labels)
    rows = evidence.rows_with("test_acc").join(group.runs, on="run", how="inner", suffix="_of_run")
    found = curves(group, rows.filter(pl.col("epoch") == pl.col("epochs")), "depth")
    if not any(line.n.any() for line in found.lines):
        raise NoData(f"no defined test_acc of the last epoch in {evidence.source}")
    title = f"Accuracy by depth, {_networks(group.runs)}, {group.runs['epochs'][0]} epochs"
    figure = new_figure(DOUBLE, 3.4, f"{title}, {n_text(group, found.summary)}")
    ((ax,),), legend = panel_grid(figure, 1, 1, legend=0.3)
    rules = dict(group.runs.select("line", "rule").iter_rows())
    drawn: dict[str, int] = {}
    for line in found.lines:
        rule = rules[line.key]
        dashes = _DASHES[drawn.setdefault(rule, 0) % len(_DASHES)]
        drawn[rule] += 1
        for values in line.seeds if line.n.max() > 1 else ():
            ax.plot(line.x, values, color=COLOR[rule], linewidth=0.6, alpha=0.45, label=SEED_LINE)
        ax.plot(line.x, line.mean, marker=MARKER[rule], linestyle=dashes, color=COLOR[rule], label=line.label)
    depths = sorted(group.runs["depth"].unique())
    ax.set_xscale("log", base=2)
    ax.set_xticks(depths, list(map(str, depths)))
    ax.set_xlabel("blocks")
    percent_axis(ax, *found.extents(log=False))
    ax.set_ylabel(TRAINED["test_acc"].label)
    legend_row(legend, [ax])
    notes = line_notes(found.lines, log=False, unit="blocks")
    notes += [f"At one depth, and not shown: {listed(alone)}."] if alone else []
    fine_print(figure, notes)
    what = "Test accuracy after the last epoch against the number of blocks."
    return figure, caption(group, found.summary, "", what, notes)


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
