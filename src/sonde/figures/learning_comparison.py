"""Figure 10: what both networks learned, side by side."""

import math
import textwrap

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.figures.backward import Backward, backward
from sonde.figures.depth_profiles import draw_log_profile
from sonde.figures.marks import Series, gap_notes, layer_axis, series
from sonde.figures.residual import (
    MODELS,
    Pair,
    last_rows,
    loss_rows,
    moment,
    over_depth,
    over_steps,
    pair_of,
    weights_text,
)
from sonde.figures.style import COLOR, DOUBLE, FAINT, INK, footnotes, legend_above, new_figure
from sonde.figures.training_loss import draw_losses, end, ends, verdicts
from sonde.figures.words import caption, missing_seeds, n_text
from sonde.runs.evidence import Evidence
from sonde.verdicts import gradient_status, loss_status, number


def draw(evidence: Evidence) -> tuple[Figure, str]:
    pair = pair_of(evidence)
    losses, gradients = loss_rows(pair), last_rows(pair, "preact_grad_norm")
    by_step, by_layer = over_steps(losses), over_depth(pair, gradients)
    curves = [series(by_step, model, pair.labels[model], "step") for model in MODELS]
    profiles = [series(by_layer, model, pair.labels[model]) for model in MODELS]
    summary, words = ends(losses), verdicts(pair, losses)
    notes = [note for line in curves for note in gap_notes(line, log=True, unit="steps")]
    notes += [note for line in profiles for note in gap_notes(line, log=True)]
    notes += missing_seeds(pair, losses) + missing_seeds(pair, gradients)

    counts = pl.concat([by_step.select("model", "n"), by_layer.select("model", "n")])
    title = f"Learning compared, {moment(gradients)}, {weights_text(pair)}, {n_text(pair, counts)}"
    figure = new_figure(DOUBLE, 5.0, title)
    (loss, fell), (gradient, table) = figure.subplots(2, 2)
    draw_losses(loss, curves, pair.trivial_loss)
    legend_above(loss, 3)
    draw_reduction(fell, summary, words)
    draw_log_profile(gradient, profiles)
    gradient.set_ylabel("gradient norm ‖∂loss/∂z‖₂")
    layer_axis(gradient, pair.depth)
    legend_above(gradient)
    draw_table(table, pair, table_of(pair, summary, profiles, backward(pair)))
    footnotes(figure, notes)
    shown = (
        "Batch loss against steps; by how much the loss of the last step lies below that of the first; "
        f"gradient norm per layer {moment(gradients)}; summary."
    )
    look = f"Look at which network learned: {'; '.join(words.values())}."
    return figure, caption(pair, counts, shown, look, notes)


def draw_reduction(ax: Axes, summary: pl.DataFrame, words: dict[str, str]) -> None:
    """Loss reduction in per cent as bars, with the verdict written above each."""
    extent = [0.0, 100.0]
    for place, model in enumerate(reversed(MODELS)):
        mean, std, n = end(summary, model, "reduction")
        text = "\n".join(textwrap.wrap(words[model], 50))
        across = ax.get_yaxis_transform()
        ax.text(0, place + 0.24, text, va="bottom", fontsize=7.5, color=INK, transform=across)
        if math.isnan(mean):
            ax.plot(0, place, "x", color=FAINT, markersize=4, label="undefined")
            continue
        ax.barh(place, mean, height=0.36, color=COLOR[model])
        ax.plot([0, 0], [place - 0.18, place + 0.18], color=FAINT, linewidth=0.8)
        extent += [mean]
        if n >= 2:
            ax.errorbar(mean, place, xerr=std, fmt="none", ecolor=INK, elinewidth=0.7, capsize=2)
            extent += [mean - std, mean + std]
    low, high = min(extent), max(extent)
    room = 0.03 * (high - low)
    ax.set_xlim(low - room, high + room)
    ax.set_ylim(-0.3, 1.7)
    ax.set_yticks([])
    ax.grid(False)
    ax.set_xlabel("loss reduction, first to last step (%)")
    ax.spines.left.set_visible(False)


def table_of(
    pair: Pair, summary: pl.DataFrame, profiles: list[Series], flow: Backward
) -> list[tuple[str, list[str]]]:
    """The summary panel: what, and its value for each network."""
    finals = [end(summary, model, "final") for model in MODELS]
    fell = [end(summary, model, "reduction")[0] for model in MODELS]
    rows = [("final loss", [spread(mean, std) for mean, std, _ in finals])]
    if pair.trivial_loss is not None:
        relative = [_times(mean / pair.trivial_loss) for mean, _, _ in finals]
        rows.append(("÷ predicting zero", relative))
    status = [loss_status(f, final[0], pair.trivial_loss) for f, final in zip(fell, finals, strict=True)]
    return [
        *rows,
        ("layer-1 gradient", [spread(line.mean[0], line.std[0]) for line in profiles]),
        ("÷ last layer", [_times(flow.ratio(model)) for model in MODELS]),
        ("gradient", [gradient_status(flow.ratio(model)).removeprefix("gradient ") for model in MODELS]),
        ("status", status),
    ]


def _times(ratio: float) -> str:
    return "undefined" if math.isnan(ratio) else f"×{number(ratio)}"


def spread(mean: float, std: float) -> str:
    """Mean ± sample standard deviation to the same digit; the mean alone where there is no spread."""
    if math.isnan(std) or std == 0:
        return number(mean)
    power = math.floor(math.log10(max(abs(mean), std)))
    scale = 10.0**power if not -4 < power < 4 else 1.0
    digits = min(max(0, 1 - math.floor(math.log10(std / scale))), 4)
    text = f"{mean / scale:.{digits}f} ± {std / scale:.{digits}f}"
    return text if scale == 1 else f"({text})e{power}"


def draw_table(ax: Axes, pair: Pair, rows: list[tuple[str, list[str]]]) -> None:
    """Rows of text in three columns, with rules between."""
    ax.axis("off")
    ax.set(xlim=(0, 1), ylim=(len(rows) + 1, 0))
    columns = (0.0, 0.33, 0.69)
    for x, model in zip(columns[1:], MODELS, strict=True):
        ax.text(x, 0.5, pair.labels[model], color=COLOR[model], weight="bold", va="center", fontsize=7.5)
    for place, (name, values) in enumerate(rows, 1):
        ax.axhline(place, color="#D0D0D0", linewidth=0.6)
        ax.text(0, place + 0.5, name, color=FAINT, va="center", fontsize=7)
        for x, text in zip(columns[1:], values, strict=True):
            weight = "bold" if name == "status" else "normal"
            ax.text(x, place + 0.5, text, color=INK, va="center", weight=weight, fontsize=7)
