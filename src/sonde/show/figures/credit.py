"""Figures of the cifar10, audit and rules studies: each rule's credit, its backward matrices and the drift it causes.

V is the matrix that replaces a weight matrix W in the backward pass.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.analysis.evidence import Evidence, NoData
from sonde.core.formatting import number
from sonde.metrics import CONTROLS, TRAINED, base_of, label_of
from sonde.show.figures.groups import Cohort, cohort_of
from sonde.show.figures.marks import (
    FLATTENED,
    draw_panel,
    epoch_axis,
    layer_axis,
    linear_limits,
    log_axis,
    log_limits,
    signed_ticks,
    wide_scale,
    write_empty,
)
from sonde.show.figures.series import (
    Curves,
    Series,
    caption,
    common_epoch,
    curves,
    latest,
    line_notes,
    merge_notes,
    missing_seeds,
    n_text,
    places_of,
    with_n,
)
from sonde.show.figures.style import (
    COLOR,
    DOUBLE,
    FAINT,
    SINGLE_PANEL,
    fine_print,
    legend_row,
    new_figure,
    panel_grid,
    panel_title,
    unbroken,
)

_ETA = "0.01"  # the step of the nudge that is drawn
_METRICS = ("credit_cosine", "rho", f"nudge[{_ETA}]")
_SYMBOLS = {name: TRAINED[base_of(name)].symbol for name in _METRICS}  # in notes
_SMALLEST = 1e-4  # of the largest loss change: the axis does not resolve what is smaller
_CONTROL_LINES = {"bp": (0, (3, 1.5)), "null": (0, (1, 1))}
_MATRICES = {metric: f"{TRAINED[metric].symbol}, mean over blocks" for metric in ("weight_alignment", "weight_ratio")}
CHANCE_TEXT = (
    "credit by chance (null), which is the rule's with its random matrices or networks drawn again (those of FA or "
    "DFA if the rule fits its own to the weights); for a rule without random parts, one random vector per sample"
)
"""What the control of chance is, in captions."""
_DRIFT_OF = "drift[blocks.{}.w1.weight]"
_DRIFT = r"^drift\[blocks\.(\d+)\.w1\.weight\]$"


@dataclass(frozen=True)
class _Diagnostic:
    """One metric at one epoch: the rules' lines, and those of their controls."""

    metric: str
    notes: list[str]  # without the metric's name
    epoch: int | None = None
    own: Curves | None = None
    ceiling: Sequence[Series] = ()
    null: Sequence[Series] = ()

    @property
    def lines(self) -> list[Series]:
        return self.own.lines if self.own is not None else []


def draw_diagnostics(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 15: three measures of whether the credit points where the BP gradient points, layer by layer."""
    cohort = cohort_of(evidence)
    metrics = {metric: places_of(cohort.evidence.rows_with(metric)) for metric in _METRICS}
    if not any(rows["defined"].any() for rows in metrics.values()):
        undefined = any(rows.height for rows in metrics.values())
        what = "every {} value is undefined" if undefined else "no {} rows"
        raise NoData(f"{what.format(', '.join(_METRICS))} in {cohort.source}")
    epoch = common_epoch(pl.concat(metrics.values()))
    diagnostics = [_diagnostic(cohort, metric, rows, epoch) for metric, rows in metrics.items()]
    counts = pl.concat([one.own.summary.select("rule", "n") for one in diagnostics if one.own and one.lines])

    when = _when(diagnostics)
    title = f"Credit diagnostics, {cohort.setting}, {when}, {n_text(cohort, counts)}"
    figure = new_figure(DOUBLE, 3.3, title)
    (axes,), legend = panel_grid(figure, 1, 3, legend=0.08)
    names = with_n([line for one in diagnostics for line in one.lines])
    tagged = [(note, _SYMBOLS[one.metric]) for one in diagnostics for note in one.notes]
    notes = merge_notes(tagged, (_SYMBOLS[one.metric] for one in diagnostics if one.lines))
    notes += _without(cohort, diagnostics)
    for ax, one in zip(axes, diagnostics, strict=True):
        notes += _draw_diagnostic(ax, one, names, cohort.depth)
    ceiling, null = any(one.ceiling for one in diagnostics), any(one.null for one in diagnostics)
    _explain_controls(axes[-1], ["bp"] * ceiling + ["null"] * null)
    legend_row(legend, axes)
    fine_print(figure, notes)
    drawn = (
        f"Each rule's credit against the BP gradient, per layer, {when}: mean cosine; correlation ρ of the "
        "predicted with the true loss changes; change in loss after stepping the state against its credit "
        f"(η = {_ETA}, below 0 is good)."
    )
    if ceiling:
        drawn += " Dashed, in the rule's colour: BP's own gradient used as credit in the same network (ceiling)."
    if null:
        drawn += f" Dotted, grey: {CHANCE_TEXT}. For the nudge it is one random vector per sample."
    cosines = "; ".join(cosines_by_layer(line) for line in diagnostics[0].lines)
    seen = f"Cosine of the credit with the BP gradient: {cosines}." if cosines else ""
    return figure, caption(cohort, counts, seen, drawn, notes)


def _diagnostic(cohort: Cohort, metric: str, rows: pl.DataFrame, epoch: int | None) -> _Diagnostic:
    """Lines of a metric and its controls at one epoch; without rows there are none, and a note says so.

    Of `rows` only the places are used: all epochs of many runs are large.
    """
    layers = range(cohort.depth + 1)
    if rows.is_empty():
        return _Diagnostic(metric, [f"No rows in {cohort.source}."])
    places, notes = latest(rows, epoch)
    at = int(places["epoch"][0])
    chosen = cohort.evidence.described(cohort.evidence.rows_with(metric, epoch=at))
    own = curves(cohort, chosen, "layer", layers)
    notes += line_notes(own.lines, log=False, unit="layers")
    notes += missing_seeds(_with_rules(cohort, {line.key for line in own.lines}), chosen)
    controls = {}
    for control, about in CONTROLS.items():
        of_control = cohort.evidence.rows_with(f"{metric}/{control}", epoch=at)
        controls[control] = curves(cohort, cohort.evidence.described(of_control), "layer", layers).lines
        if not controls[control]:
            notes.append(f"No {about.split(' ')[0]} recorded.")
    return _Diagnostic(metric, notes, at, own, controls["bp"], controls["null"])


def _with_rules(cohort: Cohort, rules: Iterable[str]) -> Cohort:
    """The cohort with the labels of these rules alone."""
    kept = set(rules)
    return replace(cohort, labels={rule: label for rule, label in cohort.labels.items() if rule in kept})


def _draw_diagnostic(ax: Axes, one: _Diagnostic, names: dict[str, str], depth: int) -> list[str]:
    """Draw the rules' lines over their controls, with a zero line; return notes on the axis."""
    panel_title(ax, unbroken(label_of(one.metric)), width=28)
    if not one.lines:
        write_empty(ax, f"no {one.metric} rows")
        return []
    ax.axhline(0, color=FAINT, linewidth=0.6)
    _draw_control(ax, one.ceiling, "bp")
    _draw_control(ax, one.null, "null")
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
    threshold = wide_scale(ax.yaxis, sized or [np.array([0.0])], least=max(noise, largest * _SMALLEST))
    ax.yaxis.set_major_formatter(signed_ticks())
    if threshold is None:
        ax.set_ylim(*linear_limits(*drawn, *null, np.array([0.0])))
        return []
    inside = ", which holds every null" * (0 < noise <= threshold)
    return [f"Loss change: axis linear within ±{number(threshold)}{inside}, logarithmic beyond."]


def _draw_control(ax: Axes, lines: Sequence[Series], control: str) -> None:
    """Draw the ceiling (`bp`) in the colour of each rule, the null in grey."""
    for line in lines:
        color = COLOR[line.key] if control == "bp" else FAINT
        ax.plot(line.x, line.mean, color=color, linewidth=0.9, linestyle=_CONTROL_LINES[control], zorder=1.8)


def _explain_controls(ax: Axes, controls: Iterable[str]) -> None:
    """Add entries for the legend, in grey."""
    for control in controls:
        ax.plot([], [], color=FAINT, linewidth=0.9, linestyle=_CONTROL_LINES[control], label=CONTROLS[control])


def _without(cohort: Cohort, diagnostics: list[_Diagnostic]) -> list[str]:
    """Notes on the rules that lack a metric which others have."""
    notes = []
    for rule, label in cohort.labels.items():
        lacking = [one.metric for one in diagnostics if one.lines and rule not in {line.key for line in one.lines}]
        if lacking:
            notes.append(f"{label}: no {', '.join(lacking)} rows.")
    return notes


def _when(diagnostics: list[_Diagnostic]) -> str:
    """The epoch, or that of each metric if they have none in common."""
    epochs = {one.epoch for one in diagnostics if one.epoch is not None}
    if len(epochs) == 1:
        return f"epoch {epochs.pop()}"
    return "epochs " + ", ".join(f"{one.epoch} ({one.metric})" for one in diagnostics if one.epoch is not None)


def cosines_by_layer(line: Series) -> str:
    """The first layer, the range over those between, the last: several rules have the exact gradient there."""
    last = int(line.x[-1])
    parts = [f"{line.label} {number(line.mean[0])} at layer 0"]
    between = line.mean[1:-1]
    between = between[~np.isnan(between)]
    if between.size:
        where = "layer 1" if last == 2 else f"layers 1–{last - 1}"
        parts.append(f"{_number_range(between.min(), between.max(), ' to ')} at {where}")
    if last:
        parts.append(f"{number(line.mean[-1])} at layer {last}")
    return ", ".join(parts)


def _number_range(low: float, high: float, joint: str) -> str:
    """Two numbers, or one if they look the same."""
    return joint.join(dict.fromkeys([number(low), number(high)]))


def draw_rules_credit(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 26: credit by depth.  Rules with a V on the left, the others on the right."""
    cohort = cohort_of(evidence.of(model="residual_mlp"))
    rows = cohort.evidence.metric("credit_cosine").filter(~pl.col("rule").is_in(["bp", "frozen"]))
    if not rows["defined"].any():
        raise NoData(f"no defined credit_cosine rows in {cohort.source}")
    chosen, notes = latest(rows, common_epoch(rows))
    epoch = chosen["epoch"][0]
    aligned = cohort.evidence.metric("weight_alignment").filter("defined")["rule"].unique().to_list()
    has_matrices = pl.col("rule").is_in(aligned)
    parts = {
        "through matrices in place of W": chosen.filter(has_matrices),
        "straight to every state": chosen.filter(~has_matrices),
    }
    layers = range(cohort.depth + 1)
    shown = {title: curves(cohort, part, "layer", layers) for title, part in parts.items()}
    notes += [note for one in shown.values() for note in line_notes(one.lines, log=False, unit="layers")]
    present = _with_rules(cohort, chosen["rule"])
    notes += missing_seeds(present, chosen)
    null = cohort.evidence.described(cohort.evidence.rows_with("credit_cosine/null", epoch=epoch))
    chance = {
        title: curves(cohort, null.filter(pl.col("rule").is_in(part["rule"].to_list())), "layer", layers).lines
        for title, part in parts.items()
    }
    figure, counts = _draw_two_panels(present, shown, f"Credit by depth, {cohort.setting}, epoch {epoch}", chance)
    for ax in figure.axes[:2]:
        layer_axis(ax, cohort.depth, first=0, zero="0")
        ax.axhline(0, color=FAINT, linewidth=0.6)
    fine_print(figure, notes)
    cosines = "; ".join(cosines_by_layer(line) for one in shown.values() for line in one.lines)
    drawn = (
        f"Mean cosine between each rule's credit and the BP gradient at every state, epoch {epoch}. BP's own is 1; "
        f"at the last state several rules send the exact gradient. Dotted, grey: {CHANCE_TEXT}. Skip connections "
        "carry credit past the matrices, so chance is high in the left panel too: compare each rule with chance."
    )
    return figure, caption(present, counts, f"Cosine of the credit with the BP gradient: {cosines}.", drawn, notes)


def draw_rules_alignment(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 27: cos(V, W) and ‖V‖/‖W‖ of the rules that have a V."""
    cohort = cohort_of(evidence.of(model="residual_mlp"))
    of_blocks = {metric: _over_blocks(cohort.evidence.metric(metric)) for metric in _MATRICES}
    if not any(rows.height for rows in of_blocks.values()):
        raise NoData(f"no defined weight_alignment rows in {cohort.source}")
    present = _with_rules(cohort, (rule for rows in of_blocks.values() for rule in rows["rule"]))
    epochs = sorted({epoch for rows in of_blocks.values() for epoch in rows["epoch"]})
    shown = {_MATRICES[metric]: curves(present, rows, "epoch", epochs) for metric, rows in of_blocks.items()}
    tagged = [(note, title) for title, one in shown.items() for note in line_notes(one.lines, log=False)]
    notes = merge_notes(tagged, shown)
    figure, counts = _draw_two_panels(present, shown, f"Backward matrices, {cohort.setting}, {cohort.epochs} epochs")
    for ax, one in zip(figure.axes, shown.values(), strict=False):
        if one.lines:
            epoch_axis(ax, one.lines)
    fine_print(figure, notes)
    text = (
        "Cosine between the weight matrices W of the blocks and the matrices V that replace them in the backward pass "
        "(left), and the size of V relative to W (right): means over all matrices of all blocks, against epochs."
    )
    found, sizes = (
        ", ".join(f"{line.label} {line.mean[0]:z.2f} to {line.mean[-1]:z.2f}" for line in one.lines)
        for one in shown.values()
    )
    seen = f"Cosine of V with W, first to last epoch: {found}. Size ‖V‖/‖W‖ (some lines coincide): {sizes}."
    return figure, caption(present, counts, seen, text, notes)


def _over_blocks(rows: pl.DataFrame) -> pl.DataFrame:
    """The mean over blocks of every run and epoch; a run with an undefined block has none there."""
    kept = [name for name in rows.columns if name not in ("layer", "value", "defined", "reason", "samples")]
    return (
        rows.group_by(kept, maintain_order=True)
        .agg(value=pl.col("value").mean(), defined=pl.col("defined").all())
        .filter("defined")
    )


def _draw_two_panels(
    cohort: Cohort, shown: dict[str, Curves], title: str, chance: dict[str, list[Series]] | None = None
) -> tuple[Figure, pl.DataFrame]:
    """Draw two panels and return the figure with n of its lines.

    There is one legend for both.  With `chance` the panels have different lines, so each has its own.
    """
    counts = pl.concat([one.summary.select("rule", "n") for one in shown.values()])
    figure = new_figure(DOUBLE, 3.4 if chance is None else 4.2, f"{title}, {n_text(cohort, counts)}")
    layout = figure.add_gridspec(2, 2, height_ratios=(1, 0.08 if chance is None else 0.3))
    panels = [figure.add_subplot(layout[0, column]) for column in range(2)]
    names = with_n([line for one in shown.values() for line in one.lines])
    if chance is not None:  # half of the width is left for a legend
        names = {rule: name.replace(" (", "\n(") for rule, name in names.items()}
    for ax, (about, one) in zip(panels, shown.items(), strict=True):
        panel_title(ax, about)
        if not one.lines:
            write_empty(ax, "no rule of this kind")
            continue
        null = [] if chance is None else chance[about]
        _draw_control(ax, null, "null")
        draw_panel(ax, one.lines, log=False, names=names)
        _explain_controls(ax, ["null"] * bool(null))
        extents = [*one.extents(log=False), *(line.mean for line in null), np.array([0.0, 1.0])]
        ax.set_ylim(*linear_limits(*extents))
    if chance is None:
        legend_row(figure.add_subplot(layout[1, :]), panels)
    else:
        for column, ax in enumerate(panels):
            legend_row(figure.add_subplot(layout[1, column]), [ax], share=0.5)
    return figure, counts


def draw_weight_drift(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 16: how far the first weight of every block moved from its initial value, per rule."""
    cohort = cohort_of(evidence)
    asked = [_DRIFT_OF.format(block) for block in range(cohort.depth)] or ["drift["]  # a file may not tell the depth
    named = cohort.evidence.rows_with(*asked).filter(pl.col("metric").str.contains(_DRIFT))
    rows = named.with_columns(layer=pl.col("metric").str.extract(_DRIFT).cast(pl.Int64))
    if not rows["defined"].any():
        raise NoData(f"no drift of blocks.0.w1.weight, … in {cohort.source}")
    rows, notes = latest(rows, common_epoch(rows))
    rows = cohort.evidence.described(rows)
    epoch = rows["epoch"][0]
    blocks = max(cohort.depth, *(block + 1 for block in rows["layer"]))
    drift = curves(cohort, rows, "layer", range(blocks))
    lines, summary, log = drift.lines, drift.summary, _needs_log(drift.lines)
    absent = [label for rule, label in cohort.labels.items() if rule not in set(rows["rule"])]
    notes += line_notes(lines, log=log, unit="blocks") + missing_seeds(cohort, rows)
    notes += [f"{label}: no drift recorded." for label in absent]

    title = f"Weight drift, {cohort.setting}, epoch {epoch}, {n_text(cohort, summary)}"
    figure = new_figure(SINGLE_PANEL, 3.4, title)
    ((ax,),), legend = panel_grid(figure, 1, 1, legend=0.08)
    draw_panel(ax, lines, log=log, names=with_n(lines))
    if log:
        log_axis(ax, log_limits(*drift.extents(log=True)))
    else:
        every = np.concatenate(drift.extents(log=False))
        top, low = float(np.nanmax(every, initial=0)), float(np.nanmin(every, initial=0))
        ax.set_ylim(low - 0.04 * (top - low or 1), top + 0.06 * (top - low or 1))
    layer_axis(ax, blocks - 1, first=0, zero="0")
    ax.set_xlabel("block")
    symbol = TRAINED["drift"].symbol
    ax.set_ylabel(f"{symbol} of w1")
    legend_row(legend, [ax])
    fine_print(figure, notes)
    drawn = f"Relative distance {symbol} of blocks.l.w1.weight from its initial value, epoch {epoch}."
    moved = {line.label: line.mean[~np.isnan(line.mean)] for line in lines}
    ranges = [f"{label} {_number_range(of.min(), of.max(), '–')}" for label, of in moved.items() if of.size]
    seen = f"How far the weights of the blocks moved, least and most over blocks: {', '.join(ranges)}."
    return figure, caption(cohort, summary, seen, drawn, notes)


def _needs_log(lines: list[Series]) -> bool:
    """Whether a linear axis would flatten one rule's drift beside another's."""
    every = np.concatenate([line.shown(log=True) for line in lines])
    every = every[~np.isnan(every)]
    return bool(every.size and every.max() / every.min() > FLATTENED)
