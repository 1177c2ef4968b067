"""What good and what bad looks like: one quantity of two runs side by side, and one rule among the others."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.analysis.evidence import Evidence, NoData
from sonde.core.formatting import accuracy, number
from sonde.metrics import TRAINED
from sonde.show.figures.credit import CHANCE_TEXT, cosines_by_layer
from sonde.show.figures.groups import Cohort, Pair, cohort_of
from sonde.show.figures.marks import (
    draw_line,
    draw_panel,
    draw_undefined,
    epoch_axis,
    layer_axis,
    linear_limits,
    log_axis,
    log_limits,
    percent_axis,
    write_empty,
)
from sonde.show.figures.series import Floats, Group, Series, caption, curves, latest, line_notes, n_text
from sonde.show.figures.style import FAINT, house_style, legend_row, new_figure, panel_grid, panel_title

_WIDTH, _HEIGHT = 5.6, 2.5  # inches: small, so that a page of many is light and its text is large
_GREY_LINES = ((0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))  # of the lines to compare with
_LABEL_WIDTH = 26  # letters in a line of a y label
_NAMED_PLACES, _LONGEST_NAME = 8, 9  # more modules, or longer names, are written as numbers
_FRAME = ("bp", "frozen")  # the rules that a portrait compares a rule's accuracy with


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
    """One panel: a line of the group by its key, grey lines to compare it with, and the names of its places."""

    title: str
    key: str
    beside: Mapping[str, pl.DataFrame] = field(default_factory=dict)  # label → rows of the same group
    places: Sequence[str] = ()


_G = TypeVar("_G", Pair, Cohort)


def keep_lines(group: _G, keys: Iterable[str]) -> _G:
    """The group with these lines alone."""
    labels = {key: group.labels[key] for key in dict.fromkeys(keys) if key in group.labels}
    runs = group.runs.filter(pl.col(group.by).is_in(list(labels)))
    rows = group.evidence.rows.join(runs.select("run"), on="run", how="semi")
    return replace(group, evidence=Evidence(rows, runs, group.source), labels=labels)


def draw_contrast(
    group: Group, rows: pl.DataFrame, cases: Sequence[Case], measure: Measure, *, title: str, shown: str
) -> tuple[Figure, str]:
    """Draw a panel for each case, all on one scale; the caption says n, recipe, runs and how far the lines reach."""
    own = curves(group, rows, measure.along)
    lines = {line.key: line for line in own.lines if not np.isnan(line.mean).all()}
    grey = {case.key: _lines_beside(group, case, measure) for case in cases}
    with house_style():
        figure = new_figure(_WIDTH, _HEIGHT, title)
        (axes,), legend = panel_grid(figure, 1, len(cases))
        for ax, case in zip(axes, cases, strict=True):
            panel_title(ax, case.title, width=40)
            if case.key in lines:
                _draw_case(ax, lines[case.key], grey[case.key], case, measure)
            else:
                write_empty(ax, "no finite value" if case.key in {line.key for line in own.lines} else "no rows")
        drawn = [*lines.values(), *(line for of_case in grey.values() for line in of_case.values())]
        _set_one_scale(axes, drawn, measure)
        legend_row(legend, axes)
    notes = [note for line in own.lines for note in line.gaps(log=measure.log, unit=f"{measure.along}s")]
    reached = "; ".join(_reach(case.title, lines.get(case.key), measure) for case in cases)
    return figure, caption(group, own.summary, f"{reached}.", shown, notes)


def _lines_beside(group: Group, case: Case, measure: Measure) -> dict[str, Series]:
    found: dict[str, Series] = {}
    for label, rows in case.beside.items():
        line = next((one for one in curves(group, rows, measure.along).lines if one.key == case.key), None)
        if line is not None and not np.isnan(line.mean).all():
            found[label] = line
    return found


def _draw_case(ax: Axes, line: Series, grey: Mapping[str, Series], case: Case, measure: Measure) -> None:
    if measure.level is not None:
        ax.axhline(measure.level, color=FAINT, linewidth=0.8, label=measure.level_name)
    for (label, one), style in zip(grey.items(), _GREY_LINES, strict=False):
        ax.plot(one.x, one.shown(measure.log), color=FAINT, linewidth=1, linestyle=style, label=label)
    draw_line(ax, line, log=measure.log)
    draw_undefined(ax, line, 0.04)
    if measure.along == "epoch":
        epoch_axis(ax, [line])
    elif measure.along in ("layer", "block"):
        layer_axis(ax, int(line.x[-1]), first=int(line.x[0]), zero="0")
        ax.set_xlabel(measure.along)
    elif measure.along == "step":
        ax.set_xlabel("step")
    else:
        _place_axis(ax, case.places)


def _place_axis(ax: Axes, places: Sequence[str]) -> None:
    """Label the x axis with the names of modules or parameters, or with numbers if these are too long."""
    ax.set_xlabel("in the order of execution")
    short = len(places) <= _NAMED_PLACES and all(len(name) <= _LONGEST_NAME for name in places)
    names = places if short else [str(at) for at in range(len(places))]
    every = range(0, len(names), -(-len(names) // _NAMED_PLACES))
    ax.set_xticks(list(every), [names[at] for at in every])
    if max(map(len, names), default=0) > 3:
        ax.tick_params(axis="x", labelrotation=30)


def _set_one_scale(axes: Sequence[Axes], drawn: Sequence[Series], measure: Measure) -> None:
    """Give all panels the same y limits, and along time the same x limits, so that they can be compared."""
    extents: list[Floats] = [line.extent(measure.log) for line in drawn]
    if measure.level is not None:
        extents.append(np.array([measure.level]))
    with_lines = [ax for ax in axes if ax.lines]
    for ax in with_lines:
        if measure.log:
            log_axis(ax, log_limits(*extents))
        else:
            ax.set_ylim(*linear_limits(*extents, np.array([0.0])))
    if measure.along in ("epoch", "step"):
        ends = [ax.get_xlim() for ax in with_lines]
        for ax in axes:
            ax.set_xlim(min(low for low, _ in ends), max(high for _, high in ends))
    axes[0].set_ylabel(textwrap.fill(measure.name, _LABEL_WIDTH))
    for ax in axes[1:]:
        ax.tick_params(labelleft=False)


def _reach(title: str, line: Series | None, measure: Measure) -> str:
    """From the first value to the last along time, from the smallest to the largest along depth."""
    if line is None:
        return f"{title}, no finite value"
    known = line.mean[~np.isnan(line.mean)]
    over_time = measure.along in ("epoch", "step")
    low, high = (known[0], known[-1]) if over_time else (known.min(), known.max())
    return f"{title}, {number(low)}" if low == high else f"{title}, {number(low)} to {number(high)}"


def draw_portrait(evidence: Evidence, rule: str) -> tuple[Figure, str]:
    """Draw a rule's cosine with the BP gradient beside chance at the last epoch, and its test accuracy over epochs."""
    cohort = cohort_of(evidence)
    if rule not in cohort.labels:
        raise NoData(f"no run under {rule} in {evidence.source}")
    shown = keep_lines(cohort, (rule, *_FRAME))
    own = keep_lines(cohort, (rule,))
    cosines, when = _at_last_epoch(own, "credit_cosine")
    chance, _ = _at_last_epoch(own, "credit_cosine/null")
    learning = curves(shown, shown.evidence.metric("test_acc"), "epoch")
    notes = line_notes(cosines, log=False, unit="layers")
    with house_style():
        title = f"{cohort.labels[rule]}, {cohort.network}, {cohort.task}, {n_text(shown, learning.summary)}"
        figure = new_figure(_WIDTH, _HEIGHT, title)
        ((left, right),), legend = panel_grid(figure, 1, 2)
        panel_title(left, f"{TRAINED['credit_cosine'].label}, epoch {when}", width=46)
        if any(not np.isnan(line.mean).all() for line in cosines):
            left.axhline(0, color=FAINT, linewidth=0.6)
            for line in chance:
                left.plot(line.x, line.mean, color=FAINT, linewidth=1, linestyle=_GREY_LINES[1], label="chance")
            draw_panel(left, cosines, log=False)
            layer_axis(left, cohort.depth, first=0, zero="0")
            drawn = [*(line.extent(log=False) for line in cosines), *(line.mean for line in chance)]
            left.set_ylim(*linear_limits(*drawn, np.array([0.0, 1.0])))
        else:
            write_empty(left, "undefined at every layer")
        panel_title(right, TRAINED["test_acc"].label)
        draw_panel(right, learning.lines, log=False)
        epoch_axis(right, learning.lines)
        percent_axis(right, *learning.extents(log=False), chance=cohort.chance)
        legend_row(legend, (right, left))
    text = (
        f"Left, cosine between the rule's credit and the BP gradient at every state, epoch {when}. Dotted, grey: "
        f"{CHANCE_TEXT}. Right, test accuracy over epochs, with BP and frozen blocks for comparison."
    )
    ends = ", ".join(f"{line.label} {accuracy(line.mean[-1])}" for line in learning.lines)
    by_layer = "; ".join(cosines_by_layer(line) for line in cosines)
    seen = f"Cosine with the BP gradient: {by_layer}. Test accuracy: {ends}."
    return figure, caption(shown, learning.summary, seen, text, notes)


def _at_last_epoch(cohort: Cohort, metric: str) -> tuple[list[Series], int]:
    """The lines of a metric at its last epoch, and which epoch that is."""
    rows = cohort.evidence.metric(metric)
    if rows.is_empty():
        return [], cohort.epochs
    chosen, _ = latest(rows, None)
    return curves(cohort, chosen, "layer", range(cohort.depth + 1)).lines, int(chosen["epoch"][0])
