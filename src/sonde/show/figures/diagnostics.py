"""Figure 15: does the credit point where the BP gradient points?  Three answers, layer by layer."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.analysis.evidence import Evidence, NoData
from sonde.core.formatting import number
from sonde.metrics import CONTROLS, TRAINED, base_of, label_of
from sonde.show.figures.caption import caption, merge_notes, missing_seeds, n_text
from sonde.show.figures.cohort import Cohort, cohort_of
from sonde.show.figures.marks import draw_panel, say_empty
from sonde.show.figures.scales import layer_axis, linear_limits, signed, wide_scale
from sonde.show.figures.series import Series, common_epoch, curves, latest, line_notes, with_n
from sonde.show.figures.style import (
    COLOR,
    DOUBLE,
    FAINT,
    fine_print,
    legend_row,
    new_figure,
    panel_title,
    unbroken,
)

METRICS = ("credit_cosine", "rho", "nudge[0.01]")
NAMES = {name: TRAINED[base_of(name)].symbol for name in METRICS}  # in notes
SHOWN = 1e-4  # of the largest loss change: what is smaller is not told from zero
DASHED, DOTTED = (0, (3, 1.5)), (0, (1, 1))


@dataclass(frozen=True)
class Diagnostic:
    """One metric at one epoch: the rules' lines, and those of their controls."""

    metric: str
    epoch: int | None
    summary: pl.DataFrame
    lines: list[Series]
    ceiling: list[Series]
    null: list[Series]
    notes: list[str]  # without the metric's name


def draw(evidence: Evidence) -> tuple[Figure, str]:
    cohort = cohort_of(evidence)
    metrics = {metric: cohort.evidence.metric(metric) for metric in METRICS}
    if not any(rows["defined"].any() for rows in metrics.values()):
        undefined = any(rows.height for rows in metrics.values())
        what = "every {} value is undefined" if undefined else "no {} rows"
        raise NoData(f"{what.format(', '.join(METRICS))} in {cohort.source}")
    epoch = common_epoch(pl.concat(metrics.values()))
    diagnostics = [diagnostic(cohort, metric, rows, epoch) for metric, rows in metrics.items()]
    counts = pl.concat([one.summary.select("rule", "n") for one in diagnostics if one.lines])

    when = _when(diagnostics)
    title = f"Credit diagnostics, {cohort.setting}, {when}, {n_text(cohort, counts)}"
    figure = new_figure(DOUBLE, 3.3, title)
    layout = figure.add_gridspec(2, 3, height_ratios=(1, 0.08))
    names = with_n([line for one in diagnostics for line in one.lines])
    tagged = [(note, NAMES[one.metric]) for one in diagnostics for note in one.notes]
    notes = merge_notes(tagged, (NAMES[one.metric] for one in diagnostics if one.lines)) + _without(cohort, diagnostics)
    axes = [figure.add_subplot(layout[0, column]) for column in range(3)]
    for ax, one in zip(axes, diagnostics, strict=True):
        notes += draw_diagnostic(ax, one, names, cohort.depth)
    explain_controls(axes[-1], diagnostics)
    legend_row(figure.add_subplot(layout[1, :]), axes)
    fine_print(figure, notes)
    shown = (
        f"Each rule's credit against the BP gradient, per layer, {when}: mean cosine; correlation ρ of the "
        "predicted with the true loss changes; change in loss after stepping the state against its credit "
        "(η = 0.01, below 0 is good)." + _controls_text(diagnostics)
    )
    said = "; ".join(by_layer(line) for line in diagnostics[0].lines)
    look = f"Look at each layer, not at a mean over them. Cosines: {said}." if said else ""
    return figure, caption(cohort, counts, shown, look, notes)


def diagnostic(cohort: Cohort, metric: str, rows: pl.DataFrame, epoch: int | None) -> Diagnostic:
    """Lines of a metric and its controls at one epoch; without rows there are none, and a note says so."""
    layers = range(cohort.depth + 1)
    if rows.is_empty():
        note = f"No rows in {cohort.source}."
        return Diagnostic(metric, None, rows, [], [], [], [note])
    chosen, notes = latest(rows, epoch)
    at = int(chosen["epoch"][0])
    own = curves(cohort, chosen, "layer", layers)
    notes += line_notes(own.lines, log=False, unit="layers")
    present = replace(cohort, labels={line.key: line.label for line in own.lines})
    notes += missing_seeds(present, chosen)
    controls = {}
    for control in CONTROLS:
        of_control = cohort.evidence.metric(f"{metric}/{control}").filter(pl.col("epoch") == at)
        controls[control] = curves(cohort, of_control, "layer", layers).lines
        if not controls[control]:
            notes.append(f"No {CONTROLS[control].split(' ')[0]} recorded.")
    return Diagnostic(metric, at, own.summary, own.lines, controls["bp"], controls["null"], notes)


def draw_diagnostic(ax: Axes, one: Diagnostic, names: dict[str, str], depth: int) -> list[str]:
    """The rules' lines over their controls, with a zero line; returns what the axis needs to have said."""
    panel_title(ax, unbroken(label_of(one.metric)), width=28)
    if not one.lines:
        say_empty(ax, f"no {one.metric} rows")
        return []
    ax.axhline(0, color=FAINT, linewidth=0.6)
    for line in one.ceiling:
        ax.plot(line.x, line.mean, color=COLOR[line.key], linewidth=0.9, linestyle=DASHED, zorder=1.8)
    for line in one.null:
        ax.plot(line.x, line.mean, color=FAINT, linewidth=0.9, linestyle=DOTTED, zorder=1.8)
    draw_panel(ax, one.lines, log=False, names=names)
    layer_axis(ax, depth, first=0, zero="0")
    drawn = [line.extent(log=False) for line in one.lines] + [line.mean for line in one.ceiling]
    null = [line.mean for line in one.null]
    if not one.metric.startswith("nudge"):
        ax.set_ylim(*linear_limits(*drawn, *null, np.array([0.0, 1.0])))
        return []
    ax.set_ylabel("below 0 is good", labelpad=1)
    noise = float(np.nanmax(np.abs(np.concatenate(null)), initial=0)) if null else 0.0
    sized = [part for part in drawn if np.nanmax(np.abs(part), initial=0) > 0]
    largest = max((float(np.nanmax(np.abs(part))) for part in sized), default=0.0)
    threshold = wide_scale(ax.yaxis, sized or [np.array([0.0])], least=max(noise, largest * SHOWN))
    ax.yaxis.set_major_formatter(signed())
    if threshold is None:
        ax.set_ylim(*linear_limits(*drawn, *null, np.array([0.0])))
        return []
    inside = ", which holds every null" * (0 < noise <= threshold)
    return [f"Loss change: axis linear within ±{number(threshold)}{inside}, logarithmic beyond."]


def explain_controls(ax: Axes, diagnostics: list[Diagnostic]) -> None:
    """Entries for the legend; the ceiling is drawn in the colour of each rule."""
    grey: dict[str, Any] = {"color": FAINT, "linewidth": 0.9}
    if any(one.ceiling for one in diagnostics):
        ax.plot([], [], linestyle=DASHED, label=CONTROLS["bp"], **grey)
    if any(one.null for one in diagnostics):
        ax.plot([], [], linestyle=DOTTED, label=CONTROLS["null"], **grey)


def _controls_text(diagnostics: list[Diagnostic]) -> str:
    ceiling = " Dashed, in the rule's colour: BP's own gradient taken as credit in the same network (ceiling)."
    null = (
        " Grey dots: credit by chance (null), drawn as the rule, or the blind rule in its place, draws; for a rule "
        "that draws nothing, and for the nudge, one random vector a sample."
    )
    return ceiling * any(one.ceiling for one in diagnostics) + null * any(one.null for one in diagnostics)


def _without(cohort: Cohort, diagnostics: list[Diagnostic]) -> list[str]:
    """Which rules lack which metrics that others have."""
    notes = []
    for rule, label in cohort.labels.items():
        lacking = [one.metric for one in diagnostics if one.lines and rule not in {line.key for line in one.lines}]
        if lacking:
            notes.append(f"{label}: no {', '.join(lacking)} rows.")
    return notes


def _when(diagnostics: list[Diagnostic]) -> str:
    """The epoch, or that of each metric where they have none in common."""
    epochs = {one.epoch for one in diagnostics if one.epoch is not None}
    if len(epochs) == 1:
        return f"epoch {epochs.pop()}"
    return "epochs " + ", ".join(f"{one.epoch} ({one.metric})" for one in diagnostics if one.epoch is not None)


def by_layer(line: Series) -> str:
    """The first layer, the range over those between, the last: several rules have the exact gradient there."""
    last = int(line.x[-1])
    said = [f"{line.label} {number(line.mean[0])} at layer 0"]
    between = line.mean[1:-1]
    between = between[~np.isnan(between)]
    if between.size:
        low, high = number(between.min()), number(between.max())
        where = "layer 1" if last == 2 else f"layers 1–{last - 1}"
        said.append(f"{low if low == high else f'{low} to {high}'} at {where}")
    if last:
        said.append(f"{number(line.mean[-1])} at layer {last}")
    return ", ".join(said)
