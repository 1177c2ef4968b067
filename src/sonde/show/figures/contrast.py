"""What good and what bad looks like: one quantity of two runs, or of two kinds of run, side by side on one y axis."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.analysis.evidence import Evidence
from sonde.core.formatting import number
from sonde.show.figures.caption import Group, caption
from sonde.show.figures.cohort import Cohort
from sonde.show.figures.marks import draw_line, say_empty
from sonde.show.figures.pair import Pair
from sonde.show.figures.scales import epoch_axis, layer_axis, linear_limits, log_axis, log_limits
from sonde.show.figures.series import Floats, Series, curves
from sonde.show.figures.style import FAINT, house_style, legend_row, new_figure, panel_title

WIDTH, HEIGHT = 5.6, 2.5  # inches: small, so that a page of many is light and its words are large
GREY = ((0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))  # lines to compare with
NAME_WIDTH = 26  # letters of a y label in a line
NAMED_PLACES, NAME = 8, 9  # more modules, or longer names, are numbers instead


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What both panels show."""

    name: str  # on the y axis
    along: str  # layer, block, epoch or step; or place: of a module or parameter in the order of execution
    log: bool = False
    level: float | None = None  # a threshold, drawn across both panels
    level_name: str = ""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One panel: a line of the group by its key, grey ones to compare it with, and what its places are called."""

    title: str
    key: str
    beside: Mapping[str, pl.DataFrame] = field(default_factory=dict)  # label → rows of the same group
    places: Sequence[str] = ()


G = TypeVar("G", bound="Pair | Cohort")


def only(group: G, keys: Iterable[str]) -> G:
    """The group with these lines alone."""
    labels = {key: group.labels[key] for key in dict.fromkeys(keys) if key in group.labels}
    runs = group.runs.filter(pl.col(group.by).is_in(list(labels)))
    rows = group.evidence.rows.join(runs.select("run"), on="run", how="semi")
    return replace(group, evidence=Evidence(rows, runs, group.source), labels=labels)


def draw_contrast(
    group: Group, rows: pl.DataFrame, cases: Sequence[Case], measure: Measure, *, title: str, shown: str
) -> tuple[Figure, str]:
    """The figure, and a caption that says n, recipe, runs and how far the lines reach."""
    own = curves(group, rows, measure.along)
    lines = {line.key: line for line in own.lines}
    grey = {case.key: _beside(group, case, measure) for case in cases}
    with house_style():
        figure = new_figure(WIDTH, HEIGHT, title)
        layout = figure.add_gridspec(2, len(cases), height_ratios=(1, 0.06))
        axes = [figure.add_subplot(layout[0, column]) for column in range(len(cases))]
        for ax, case in zip(axes, cases, strict=True):
            panel_title(ax, case.title, width=40)
            _draw(ax, lines.get(case.key), grey[case.key], case, measure)
        drawn = [*lines.values(), *(line for of_case in grey.values() for line in of_case.values())]
        _one_scale(axes, drawn, measure)
        legend_row(figure.add_subplot(layout[1, :]), axes)
    notes = [note for line in own.lines for note in line.gaps(log=measure.log, unit=f"{measure.along}s")]
    said = "; ".join(_reach(case.title, lines.get(case.key), measure) for case in cases)
    return figure, caption(group, own.summary, shown, f"{said}.", notes)


def _beside(group: Group, case: Case, measure: Measure) -> dict[str, Series]:
    found: dict[str, Series] = {}
    for label, rows in case.beside.items():
        line = next((one for one in curves(group, rows, measure.along).lines if one.key == case.key), None)
        if line is not None and not np.isnan(line.mean).all():
            found[label] = line
    return found


def _draw(ax: Axes, line: Series | None, grey: Mapping[str, Series], case: Case, measure: Measure) -> None:
    if line is None or np.isnan(line.mean).all():
        say_empty(ax, "no finite value" if line is not None else "no rows")
        return
    if measure.level is not None:
        ax.axhline(measure.level, color=FAINT, linewidth=0.8, label=measure.level_name)
    for (label, one), style in zip(grey.items(), GREY, strict=False):
        ax.plot(one.x, one.shown(measure.log), color=FAINT, linewidth=1, linestyle=style, label=label)
    draw_line(ax, line, log=measure.log)
    undefined = line.x[np.isnan(line.mean)]
    if undefined.size:
        foot = np.full(undefined.size, 0.04)
        ax.plot(
            undefined,
            foot,
            "x",
            color=FAINT,
            markersize=4,
            label="undefined",
            transform=ax.get_xaxis_transform(),
        )
    _along(ax, line, case, measure.along)


def _along(ax: Axes, line: Series, case: Case, along: str) -> None:
    if along == "epoch":
        epoch_axis(ax, [line])
    elif along in ("layer", "block"):
        layer_axis(ax, int(line.x[-1]), first=int(line.x[0]), zero="0")
        ax.set_xlabel(along)
    elif along == "step":
        ax.set_xlabel("step")
    else:
        ax.set_xlabel("in the order of execution")
        short = len(case.places) <= NAMED_PLACES and all(len(name) <= NAME for name in case.places)
        names = case.places if short else [str(at) for at in range(len(case.places))]
        every = range(0, len(names), -(-len(names) // NAMED_PLACES))
        ax.set_xticks(list(every), [names[at] for at in every])
        if max(map(len, names), default=0) > 3:
            ax.tick_params(axis="x", labelrotation=30)


def _one_scale(axes: Sequence[Axes], drawn: Sequence[Series], measure: Measure) -> None:
    """The same limits for both panels, so that they can be compared; of time, too."""
    extents: list[Floats] = [line.extent(measure.log) for line in drawn]
    if measure.level is not None:
        extents.append(np.array([measure.level]))
    for ax in axes:
        if not ax.lines:
            continue
        if measure.log:
            log_axis(ax, log_limits(*extents))
        else:
            ax.set_ylim(*linear_limits(*extents, np.array([0.0])))
    if measure.along in ("epoch", "step"):
        ends = [ax.get_xlim() for ax in axes if ax.lines]
        for ax in axes:
            ax.set_xlim(min(low for low, _ in ends), max(high for _, high in ends))
    axes[0].set_ylabel(textwrap.fill(measure.name, NAME_WIDTH))
    for ax in axes[1:]:
        ax.tick_params(labelleft=False)


def _reach(title: str, line: Series | None, measure: Measure) -> str:
    """From the first value to the last along time, from the smallest to the largest along depth."""
    if line is None or np.isnan(line.mean).all():
        return f"{title}, no finite value"
    known = line.mean[~np.isnan(line.mean)]
    over_time = measure.along in ("epoch", "step")
    low, high = (known[0], known[-1]) if over_time else (known.min(), known.max())
    return f"{title}, {number(low)}" if low == high else f"{title}, {number(low)} to {number(high)}"
