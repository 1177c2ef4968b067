"""Figure 17: State Bridge's prediction error, beside the accuracy it buys."""

from dataclasses import dataclass

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.analysis.evidence import Evidence, NoData
from sonde.core.formatting import number
from sonde.core.seed_statistics import over_seeds
from sonde.show.figures.caption import caption, n_text
from sonde.show.figures.cohort import Cohort, cohort_of
from sonde.show.figures.final_values import Change, Finals, changes, draw_finals, finals_of
from sonde.show.figures.marks import say_empty
from sonde.show.figures.scales import epoch_axis, log_axis, log_limits
from sonde.show.figures.series import Series, line_notes, series
from sonde.show.figures.style import (
    COLOR,
    DOUBLE,
    fine_print,
    legend_above,
    new_figure,
    panel_title,
    unbroken,
)

RULES = ("dfa", "state_bridge", "credit_bridge")
BRIDGE, ERROR = "state_bridge", "state_pred_error"
STYLES = ("-", (0, (4, 1.2)), (0, (1, 1)), (0, (5, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v")


def draw(evidence: Evidence) -> tuple[Figure, str]:
    cohort = cohort_of(evidence, rules=RULES)
    errors = cohort.evidence.metric(ERROR).filter(pl.col("rule") == BRIDGE)
    finals = _finals(cohort, errors)
    lines = seed_lines(errors)
    said, what = sentence(cohort, errors, finals), error_words(cohort)
    notes = line_notes(lines, log=True)
    if not lines:
        notes.append(f"No {ERROR} rows of {BRIDGE} in {cohort.source}.")
    notes += [f"No {rule} run in {cohort.source}." for rule in RULES if rule not in cohort.labels]
    if finals is not None:
        notes += finals.notes

    counts = finals.summary if finals is not None else over_seeds(errors, "rule").select("rule", "n")
    title = f"State against credit, {cohort.setting}, {cohort.epochs} epochs, {n_text(cohort, counts)}"
    figure = new_figure(DOUBLE, 3.0, title)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    draw_errors(left, lines, what.axis)
    if finals is None:
        say_empty(right, "no test_acc rows")
    else:
        draw_finals(right, finals.rules, room=0.5)
        right.set_xlabel(f"test accuracy at epoch {finals.epoch}")
    panel_title(right, unbroken(said), width=46)
    fine_print(figure, notes)
    shown = f"Left: {what.caption}; one line per seed. Right: test accuracy at the end of training."
    look = f"Look at whether predicting the state well goes with learning well: {said}."
    return figure, caption(cohort, counts, shown, look, notes, marks="lines and bars")


def _finals(cohort: Cohort, errors: pl.DataFrame) -> Finals | None:
    """Test accuracies; None where there are none but the errors can be shown."""
    try:
        return finals_of(cohort)
    except NoData as missing:
        if errors["defined"].any():
            return None
        raise NoData(f"no {ERROR} rows and {missing}") from None


def seed_lines(errors: pl.DataFrame) -> list[Series]:
    """Each run's own values, as a line without spread."""
    lines = []
    for run, seed in errors.select("run", "seed").unique(maintain_order=True).sort("seed", "run").rows():
        one = over_seeds(errors.filter(pl.col("run") == run), "run", "epoch")
        label = "seed not recorded" if seed is None else f"seed {seed}"
        lines.append(series(one, run, label, "epoch"))
    return lines


@dataclass(frozen=True)
class ErrorWords:
    """What State Bridge's prediction error is: on the axis, and in the caption."""

    axis: str
    caption: str


def error_words(cohort: Cohort) -> ErrorWords:
    """Whose error it is, relative to what, normalised or not, and on which samples."""
    norm = next(iter(cohort.runs.filter(pl.col("rule") == BRIDGE)["input_norm"]), None)
    if norm is None:
        return ErrorWords(
            "prediction error of the last state\n(State Bridge, as the files have it)",
            f"State Bridge's error in predicting the last hidden state as the files have it ({ERROR}): whether it is "
            "relative to the state's norm, whether the state was normalised and on which samples is not recorded",
        )
    top = "LN(h_L)" if norm == "layer" else "h_L"
    how = "after a LayerNorm (LN) without gain and bias" if norm == "layer" else "not normalised"
    return ErrorWords(
        f"relative error in {top.replace('h_L', '$h_L$')}\n(State Bridge, training batches)",
        "error of State Bridge's own network G in predicting the last hidden state, "
        f"‖G(h_l) − {top}‖²/‖{top}‖², h_L {how}, averaged over the layers l < L and over the epoch's training "
        "batches, each before G learns from it",
    )


def draw_errors(ax: Axes, lines: list[Series], ylabel: str) -> None:
    """Prediction errors on a log axis, all in the colour of the rule."""
    if not lines:
        say_empty(ax, f"no {ERROR} rows")
        return
    for number_of_line, line in enumerate(lines):
        y = line.shown(log=True)
        ax.plot(
            line.x,
            y,
            color=COLOR[BRIDGE],
            linestyle=STYLES[number_of_line % len(STYLES)],
            marker=MARKERS[number_of_line % len(MARKERS)],
            markevery=max(1, y.size // 8),
            label=line.label,
        )
    log_axis(ax, log_limits(*(line.shown(log=True) for line in lines)))
    epoch_axis(ax, lines)
    ax.set_ylabel(ylabel)
    legend_above(ax, min(len(lines), 3))


def sentence(cohort: Cohort, errors: pl.DataFrame, finals: Finals | None) -> str:
    """State Bridge's prediction error against its rank in test accuracy."""
    bridge = finals.of(BRIDGE) if finals is not None else None
    moved = changes(cohort, errors)
    parts = [_error_words(moved[0], errors)] if moved else []
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


def _error_words(change: Change, errors: pl.DataFrame) -> str:
    at = {
        epoch: over_seeds(errors.filter(pl.col("epoch") == epoch), "rule")["mean"][0]
        for epoch in (change.first, change.last)
    }
    return (
        f"predicts with error {number(at[change.last])} at epoch {change.last} "
        f"({number(at[change.first])} at epoch {change.first})"
    )
