"""Figures of the cifar10, audit and rules studies: what accuracy each rule reaches."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.analysis.evidence import Evidence, NoData
from sonde.core.formatting import accuracy, number, signed
from sonde.core.seed_statistics import over_seeds, paired, summarise
from sonde.metrics import SHARE, TRAINED
from sonde.show.figures.groups import Cohort, cohort_of
from sonde.show.figures.marks import (
    PERCENT,
    draw_bars,
    draw_chance,
    epoch_axis,
    log_axis,
    log_limits,
    percent_axis,
    write_empty,
)
from sonde.show.figures.panels import ACCURACY, Final, Finals, Quantity, changes_of, finals_of, grid_of
from sonde.show.figures.series import Series, caption, line_notes, merge_notes, missing_seeds, n_text, point, series_of
from sonde.show.figures.style import (
    COLOR,
    DOUBLE,
    INK,
    PAPER,
    SINGLE_PANEL,
    fine_print,
    legend_row,
    new_figure,
    panel_grid,
    panel_title,
    unbroken,
)

_TRAIN = Quantity("train_acc")
_BRIDGE_RULES = ("dfa", "state_bridge", "credit_bridge")
_BRIDGE, _ERROR = "state_bridge", "state_pred_error"
_SEED_LINES = ("-", (0, (4, 1.2)), (0, (1, 1)), (0, (5, 1, 1, 1)))
_SEED_MARKERS = ("o", "s", "^", "D", "v")


def draw_accuracy(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 14: train and test accuracy against epochs, per rule.

    It begins at the first epoch: files of the paper layout hold nothing before it, and training accuracy has no value.
    """
    cohort = cohort_of(replace(evidence, from_epoch=1))
    grid = grid_of([cohort], (_TRAIN, ACCURACY))
    tagged = [
        (note, panel.quantity.name)
        for panel in grid.panels
        for note in [*panel.notes(alone=True), *(missing_seeds(cohort, panel.rows) if panel.lines else [])]
    ]
    notes = merge_notes(tagged, (panel.quantity.name for panel in grid.panels if panel.lines))

    title = f"Accuracy over training, {cohort.setting}, {cohort.epochs} epochs, {n_text(cohort, grid.summary)}"
    figure = new_figure(DOUBLE, 3.2, title)
    (axes,), legend = panel_grid(figure, 1, 2)
    extents = [*grid.extents(0), *grid.extents(1)]
    ends = []
    for ax, panel in zip(axes, grid.panels, strict=True):
        panel.draw(ax, grid.names, grid.lines)
        panel_title(ax, panel.quantity.name)
        if panel.lines:
            percent_axis(ax, *extents, chance=cohort.chance)
            finals = finals_of(cohort, panel.quantity.metric)
            ranked = sorted(finals.rules, key=lambda final: -final.mean if final.n else 0)
            ends.append(f"{panel.quantity.name} at epoch {finals.epoch}: {replace(finals, rules=ranked).words}")
    axes[0].set_ylabel("accuracy")
    legend_row(legend, axes)
    fine_print(figure, notes)
    drawn = "Training accuracy (left) and test accuracy (right) against epochs, both on one scale that ends at 100 %."
    return figure, caption(cohort, grid.summary, f"{'; '.join(ends)}.", drawn, notes)


def draw_summary(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 18: test accuracy at the end of training, all rules."""
    cohort = cohort_of(evidence)
    finals = finals_of(cohort)
    frozen = finals.of("frozen")

    epoch, epochs = finals.epoch, cohort.epochs
    when = f"{epochs} epochs" if epoch == epochs else f"epoch {epoch} of {epochs}"
    title = f"Test accuracy, {cohort.setting}, {when}, {n_text(cohort, finals.summary)}"
    pitch = 0.27 if len({final.n for final in finals.rules}) == 1 else 0.36  # inches a bar
    figure = new_figure(SINGLE_PANEL, 1.3 + pitch * len(finals.rules), title)
    ((ax,),), legend = panel_grid(figure, 1, 1)
    _draw_finals(ax, finals.rules, cohort.chance, reference=frozen)
    ax.set_xlabel(TRAINED["test_acc"].label)
    legend_row(legend, [ax])
    fine_print(figure, finals.notes)
    seen = f"Test accuracy at epoch {epoch}: {finals.words}.{_points_over(finals, frozen)}"
    drawn = "One bar per rule; dashed line: blocks that keep their initial weights; dotted line: guessing."
    return figure, caption(cohort, finals.summary, seen, drawn, finals.notes, marks="bars")


def draw_rules_residual_mlp(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 24: the summary of every rule on a residual MLP."""
    return draw_summary(evidence.of(model="residual_mlp"))


def draw_rules_conv_net(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 25: the summary of every rule on a ConvNet."""
    return draw_summary(evidence.of(model="conv_net"))


def _points_over(finals: Finals, frozen: Final | None) -> str:
    """How many points each rule lies above or below untrained blocks: differences by seed, as the audit takes them."""
    others = [final for final in finals.rules if final.n and final.rule != "frozen"]
    if frozen is None or not others:
        return ""
    seeded = finals.rows.filter("defined").drop_nulls("seed")
    by_seed = {
        final.rule: dict(seeded.filter(pl.col("rule") == final.rule).select("seed", "value").iter_rows())
        for final in (frozen, *others)
    }
    gaps, counts = [], []
    for final in others:
        differences = paired(by_seed[final.rule], by_seed["frozen"]).differences
        points = summarise(100 * difference for difference in differences.values())
        counts.append(points.n)
        gaps.append(f"{final.label} {signed(points.mean) if points.n else 'undefined, no seed in common'}")
    alike = len(set(counts)) == 1
    shown = gaps if alike else [f"{gap} (n = {n})" for gap, n in zip(gaps, counts, strict=True)]
    n = f", n = {counts[0]}" if alike else ""
    what = f"Points of test accuracy over {frozen.label} blocks, mean of the differences by seed"
    return f" {what}{n}: {', '.join(shown)}."


def _draw_finals(ax: Axes, finals: list[Final], chance: float | None, reference: Final | None = None) -> None:
    """Draw horizontal bars with whiskers and seeds for n ≥ 2, their values to the right of the panel.

    `reference` and `chance` are vertical lines.
    """
    counts = {final.n for final in finals}
    names = []
    for row, final in enumerate(finals):
        names.append(final.label if len(counts) == 1 else f"{final.label}\n(n = {final.n})")
        bar = point(final.rule, final.label, row, final.mean, final.std, final.n, SHARE)
        draw_bars(ax, bar)
        if not math.isnan(final.std):
            circles = {"markersize": 2.8, "markerfacecolor": PAPER, "markeredgewidth": 0.6, "clip_on": False}
            offset = row + np.linspace(-0.17, 0.17, len(final.seeds))
            ax.plot(final.seeds, offset, "o", markeredgecolor=INK, label="one seed", **circles)  # type: ignore[arg-type]
        beside = ax.get_yaxis_transform()
        ax.annotate(final.words, (1, row), (6, 0), beside, "offset points", va="center", color=INK, fontsize=7.5)
    if reference is not None:
        dashes: dict[str, Any] = {"color": INK, "linewidth": 0.9, "linestyle": (0, (4, 2)), "zorder": 2.5}
        ax.axvline(reference.mean, label=f"{reference.label} blocks, {accuracy(reference.mean)}", **dashes)
    if chance is not None:
        draw_chance(ax.axvline, chance)
    ax.set_yticks(range(len(finals)), [name.replace(" (", "\n(") for name in names])
    ax.set_ylim(len(finals) - 0.5, -0.5)
    ax.set_xlim(0, 1)
    ax.set_xticks(np.linspace(0, 1, 6))
    ax.xaxis.set_major_formatter(PERCENT)
    ax.grid(False)
    ax.grid(True, axis="x")
    ax.tick_params(axis="y", length=0)
    ax.spines.left.set_visible(False)


def draw_state_vs_credit(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 17: State Bridge's prediction error, beside the accuracy it buys."""
    cohort = cohort_of(evidence, rules=_BRIDGE_RULES)
    errors = cohort.evidence.metric(_ERROR).filter(pl.col("rule") == _BRIDGE)
    finals = _finals_unless(cohort, errors)
    lines = _seed_lines(errors)
    sentence, (axis, text) = _bridge_sentence(cohort, errors, finals), _error_texts(cohort)
    notes = line_notes(lines, log=True)
    if not lines:
        notes.append(f"No {_ERROR} rows of {_BRIDGE} in {cohort.source}.")
    notes += [f"No {rule} run in {cohort.source}." for rule in _BRIDGE_RULES if rule not in cohort.labels]
    if finals is not None:
        notes += finals.notes

    counts = finals.summary if finals is not None else over_seeds(errors, "rule").select("rule", "n")
    title = f"State against credit, {cohort.setting}, {cohort.epochs} epochs, {n_text(cohort, counts)}"
    figure = new_figure(DOUBLE, 3.2, title)
    ((left, right),), legend = panel_grid(figure, 1, 2)
    _draw_errors(left, lines, axis)
    if finals is None:
        write_empty(right, "no test_acc rows")
    else:
        _draw_finals(right, finals.rules, cohort.chance)
        right.set_xlabel(f"test accuracy at epoch {finals.epoch}")
    panel_title(right, unbroken(sentence), width=46)
    legend_row(legend, (left, right))
    fine_print(figure, notes)
    drawn = f"Left: {text}; one line per seed. Right: test accuracy at the end of training."
    return figure, caption(cohort, counts, f"{sentence}.", drawn, notes, marks="lines and bars")


def _finals_unless(cohort: Cohort, errors: pl.DataFrame) -> Finals | None:
    """Test accuracies; None if there are none but the errors can be shown."""
    try:
        return finals_of(cohort)
    except NoData as missing:
        if errors["defined"].any():
            return None
        raise NoData(f"no {_ERROR} rows and {missing}") from None


def _seed_lines(errors: pl.DataFrame) -> list[Series]:
    """Each run's own values, as a line without spread."""
    lines = []
    for run, seed in errors.select("run", "seed").unique(maintain_order=True).sort("seed", "run").rows():
        one = over_seeds(errors.filter(pl.col("run") == run), "run", "epoch")
        label = "seed not recorded" if seed is None else f"seed {seed}"
        lines.append(series_of(one, run, label, "epoch"))
    return lines


def _error_texts(cohort: Cohort) -> tuple[str, str]:
    """What State Bridge's prediction error is, for the y axis and for the caption."""
    norm = next(iter(cohort.runs.filter(pl.col("rule") == _BRIDGE)["input_norm"]), None)
    if norm is None:
        return (
            "prediction error of the last state\n(State Bridge, as the files have it)",
            f"State Bridge's error in predicting the last hidden state as the files have it ({_ERROR}): whether it is "
            "relative to the state's norm, whether the state was normalised and on which samples is not recorded",
        )
    top = "LN(h_L)" if norm == "layer" else "h_L"
    how = "after a LayerNorm (LN) without gain and bias" if norm == "layer" else "not normalised"
    return (
        f"relative error in {top.replace('h_L', '$h_L$')}\n(State Bridge, training batches)",
        "error of State Bridge's own network G in predicting the last hidden state, "
        f"‖G(h_l) − {top}‖²/‖{top}‖², h_L {how}, averaged over the layers l < L and over the epoch's training "
        "batches, each before G learns from it",
    )


def _draw_errors(ax: Axes, lines: list[Series], ylabel: str) -> None:
    """Draw prediction errors on a log axis, all in the colour of the rule."""
    if not lines:
        write_empty(ax, f"no {_ERROR} rows")
        return
    for at, line in enumerate(lines):
        y = line.shown(log=True)
        style, marker = _SEED_LINES[at % len(_SEED_LINES)], _SEED_MARKERS[at % len(_SEED_MARKERS)]
        every = max(1, y.size // 8)
        ax.plot(line.x, y, color=COLOR[_BRIDGE], linestyle=style, marker=marker, markevery=every, label=line.label)
    log_axis(ax, log_limits(*(line.shown(log=True) for line in lines)))
    epoch_axis(ax, lines)
    ax.set_ylabel(ylabel)


def _bridge_sentence(cohort: Cohort, errors: pl.DataFrame, finals: Finals | None) -> str:
    """State Bridge's prediction error against its rank in test accuracy."""
    parts = []
    for change in changes_of(cohort, errors)[:1]:
        first, last = (
            over_seeds(errors.filter(pl.col("epoch") == epoch), "rule")["mean"][0]
            for epoch in (change.first, change.last)
        )
        before = f"{number(first)} at epoch {change.first}"
        parts.append(f"predicts with error {number(last)} at epoch {change.last} ({before})")
    bridge = finals.of(_BRIDGE) if finals is not None else None
    if bridge is not None and finals is not None:
        ranked = sorted((final for final in finals.rules if final.n), key=lambda final: -final.mean)
        if len(ranked) > 1:
            rank = ranked.index(bridge) + 1
            parts.append(f"ranks {rank} of {len(ranked)} in test accuracy ({bridge.words})")
        else:
            parts.append(f"reaches {bridge.words} test accuracy")
    if not parts:
        return "State Bridge: neither prediction error nor accuracy recorded"
    return f"State Bridge {' and '.join(parts)}"
