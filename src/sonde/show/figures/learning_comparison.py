"""Figure 10: what both networks learned, side by side."""

import math
import textwrap

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.analysis.evidence import Evidence
from sonde.core.formatting import gradient_status, loss_status, number, times_trivial
from sonde.metrics import TRAINED
from sonde.show.figures.caption import caption, missing_seeds
from sonde.show.figures.marks import draw_bars, draw_panel
from sonde.show.figures.pair import MODELS, Backward, LossEnds, Pair, backward, by_step, loss_ends, pair_of
from sonde.show.figures.scales import layer_axis, log_axis, log_limits
from sonde.show.figures.series import point
from sonde.show.figures.style import COLOR, DOUBLE, FAINT, INK, footnotes, legend_above, new_figure
from sonde.show.figures.training_loss import draw_losses


def draw(evidence: Evidence) -> tuple[Figure, str]:
    pair = pair_of(evidence)
    losses, flow = by_step(pair), backward(pair)
    gradients = flow.norms
    ends = loss_ends(pair, losses.rows)
    notes = [pair.floors] if pair.floors else []
    notes += [note for line in losses.lines for note in line.gaps(log=True, unit="steps")]
    notes += [note for line in gradients.lines for note in line.gaps(log=True, unit="layers")]
    notes += missing_seeds(pair, losses.rows) + missing_seeds(pair, gradients.rows)

    counts = pl.concat([part.summary.select("model", "n") for part in (losses, gradients)])
    figure = new_figure(DOUBLE, 5.0, pair.title(f"Learning compared, {flow.when}", counts))
    (loss, fell), (gradient, table) = figure.subplots(2, 2)
    draw_losses(loss, losses, pair)
    legend_above(loss, 2)
    draw_reduction(fell, ends)
    draw_panel(gradient, gradients.lines, log=True)
    log_axis(gradient, log_limits(*gradients.extents(log=True)))
    gradient.set_ylabel(TRAINED["preact_grad_norm"].label)
    layer_axis(gradient, pair.depth)
    legend_above(gradient)
    draw_table(table, pair, table_of(ends, flow))
    footnotes(figure, notes)
    shown = (
        "Batch loss against steps; by how much the final loss (mean of the last tenth of the steps) lies below that "
        "of the first step, as all ratios of losses counted from the lowest that the network can reach; "
        f"gradient norm per layer {flow.when}; summary."
    )
    look = f"Look at which network learned: {'; '.join(ends.verdicts.values())}."
    return figure, caption(pair, counts, shown, look, notes, marks="lines and bars")


def draw_reduction(ax: Axes, ends: LossEnds) -> None:
    """Loss reduction in per cent as bars, with the verdict written above each."""
    extent = [0.0, 100.0]
    for height, model in enumerate(reversed(MODELS)):
        mean, std, n = ends.of(model, "reduction")
        text = "\n".join(textwrap.wrap(ends.verdicts[model], 50))
        across = ax.get_yaxis_transform()
        ax.text(0, height + 0.24, text, va="bottom", fontsize=7.5, color=INK, transform=across)
        if not math.isnan(mean):
            ax.plot([0, 0], [height - 0.18, height + 0.18], color=FAINT, linewidth=0.8)
            extent += [mean, mean - std, mean + std] if n >= 2 else [mean]
        draw_bars(ax, point(model, model, height, mean, std, n), thickness=0.36, cap=2)
    low, high = min(extent), max(extent)
    room = 0.03 * (high - low)
    ax.set_xlim(low - room, high + room)
    ax.set_ylim(-0.3, 1.7)
    ax.set_yticks([])
    ax.grid(False)
    ax.set_xlabel("loss reduction above the floor, first to last steps (%)")
    ax.spines.left.set_visible(False)


def table_of(ends: LossEnds, flow: Backward) -> list[tuple[str, list[str]]]:
    """The summary panel: what, and its value for each network."""
    trivial = ends.pair.trivial_loss
    finals = [ends.of(model, "final") for model in MODELS]
    fell = [ends.of(model, "reduction")[0] for model in MODELS]
    floors = [ends.pair.floor(model) for model in MODELS]
    errors = [ends.error(model, "final") for model in MODELS]
    rows = [
        (
            "final loss",
            [spread(mean, error if n < 2 else std) for (mean, std, n), error in zip(finals, errors, strict=True)],
        )
    ]
    if None not in floors:
        rows.append(("lowest possible", [number(floor, 3) for floor in floors if floor is not None]))
    if trivial is not None:
        times = [times_trivial(mean, trivial, floor) for (mean, _, _), floor in zip(finals, floors, strict=True)]
        rows.append(("÷ predicting zero", [_times(one) for one in times]))
    status = [loss_status(f, final[0], trivial, floor) for f, final, floor in zip(fell, finals, floors, strict=True)]
    return [
        *rows,
        ("layer-1 gradient", [spread(line.mean[0], line.std[0]) for line in flow.norms.lines]),
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
    for top, (name, values) in enumerate(rows, 1):
        ax.axhline(top, color="#D0D0D0", linewidth=0.6)
        ax.text(0, top + 0.5, name, color=FAINT, va="center", fontsize=7)
        for x, text in zip(columns[1:], values, strict=True):
            weight = "bold" if name == "status" else "normal"
            ax.text(x, top + 0.5, text, color=INK, va="center", weight=weight, fontsize=7)
