"""What depends on the size, relative to what is asked: a line inside the grey wedge is stable, one outside is not."""

import math
from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.analysis.scaling_result import MODEL, TOLERANCE, Scaling, Transfer, Verdict
from sonde.core.formatting import listed
from sonde.show.figures.style import (
    BLUE,
    DOUBLE,
    GREY,
    INK,
    ORANGE,
    VERMILLION,
    footnotes,
    house_style,
    new_figure,
    panel_title,
)

COLOUR_OF_VERDICT = {"stable": BLUE, "grows": VERMILLION, "vanishes": ORANGE, "undecided": GREY}


def scaling_figure(result: Scaling) -> Figure:
    """Signal at initialisation, effect of training and, where rates were tried, the loss by rate and size."""
    panels: list[tuple[str, list[Verdict]]] = [
        (
            "signal at initialisation",
            [one for one in result.verdicts if one.exponent and one.exponent.quantity == "activation"],
        ),
        (
            "effect of training",
            [one for one in result.verdicts if one.exponent and one.exponent.quantity != "activation"],
        ),
    ]
    panels = [(title, known) for title, known in panels if known]
    many = len(panels) + (result.transfer is not None)
    with house_style():
        figure = new_figure(DOUBLE, 3.1, f"{result.factory} over {result.axis}: {_answer(result)}")
        axes = figure.subplots(1, many, squeeze=False)[0]
        for ax, (title, known) in zip(axes, panels, strict=False):
            _draw_group_lines(ax, result, known)
            stable = sum(one.verdict == "stable" for one in known)
            panel_title(ax, title, f"{stable} of {len(known)} groups stable", width=40)
        if result.transfer is not None:
            _draw_transfer(axes[-1], result.transfer)
        note = "Each line: a group, relative to the smallest size and to what is asked. Hollow: left out of the fit."
        grey = f"Grey area: stable, {result.axis}^±{TOLERANCE}. Grey lines: undecided."
        footnotes(figure, [note, f"{grey} Bars: least and largest over seeds."])
    return figure


def _answer(result: Scaling) -> str:
    if result.causes:
        return f"begin with {listed([one.group for one in result.causes], 3)}"
    undecided = sum(one.verdict == "undecided" for one in result.verdicts)
    open_ones = f"; {undecided} of {len(result.verdicts)} are undecided" if undecided else ""
    return f"no group is found to grow or vanish{open_ones}"


def group_line(result: Scaling, one: Verdict) -> pl.DataFrame:
    """Mean, least and largest over seeds by size, in log₂, relative to the smallest size and to what is asked."""
    assert one.exponent is not None
    known = result.values.filter(
        pl.col("group") == one.exponent.group,
        pl.col("quantity") == one.exponent.quantity,
        pl.col("step") == one.exponent.step,
    )
    by_size = known.group_by("size").agg(
        mean=pl.col("value").mean(), low=pl.col("value").min(), high=pl.col("value").max()
    )
    line = by_size.sort("size")
    asked = one.asked * (line["size"].log(2) - math.log2(line["size"][0]))
    start = line["mean"][0]
    return line.with_columns((pl.col(name) - start - asked) for name in ("mean", "low", "high"))


def _draw_group_lines(ax: Axes, result: Scaling, verdicts: Sequence[Verdict]) -> None:
    sizes = np.array(result.sizes, dtype=float)
    reach = TOLERANCE * np.log2(sizes / sizes[0])
    ax.fill_between(sizes, 2**-reach, 2**reach, color="#DDDDDD", lw=0, gid="stable")
    ends: list[tuple[float, str, str]] = []
    for one in sorted(verdicts, key=lambda one: one.is_wrong):
        line = group_line(result, one)
        colour, x, y = COLOUR_OF_VERDICT.get(one.verdict, INK), line["size"].to_numpy(), 2 ** line["mean"].to_numpy()
        thick = 1.8 if one.is_wrong else 1.0
        ax.plot(x[:-1], y[:-1], color=colour, lw=thick, marker="o", gid=one.group)
        ax.plot(x[-2:], y[-2:], color=colour, lw=thick, ls=":")
        ax.plot(x[-1:], y[-1:], color=colour, marker="o", mfc="white")
        ax.vlines(x, 2 ** line["low"].to_numpy(), 2 ** line["high"].to_numpy(), color=colour, lw=0.5)
        if one.is_wrong:
            ends.append((float(y[-1]), one.group if one.group != MODEL else "output", colour))
    for height, name, colour in sorted(ends, key=lambda end: -abs(math.log(end[0])))[:4]:
        ax.annotate(
            name, (sizes[-1], height), (-4, 5), textcoords="offset points", ha="right", fontsize=6.5, color=colour
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    low, high = ax.get_ylim()
    ax.set_ylim(min(low, 0.25), max(high, 4.0))
    ax.set_xticks(sizes, [f"{size:g}" for size in sizes])
    ax.set_xlabel(result.axis)
    ax.minorticks_off()


def _draw_transfer(ax: Axes, transfer: Transfer) -> None:
    """The loss by rate, a line for each size; dots are the best rates."""
    sizes = transfer.losses["size"].unique().sort().to_list()
    for place, size in enumerate(sizes):
        part = transfer.losses.filter(pl.col("size") == size, pl.col("loss").is_finite())
        mean = part.group_by("rate").agg(pl.col("loss").mean()).sort("rate")
        shade = 0.25 + 0.75 * place / max(1, len(sizes) - 1)
        ax.plot(mean["rate"], mean["loss"], color=BLUE, alpha=shade, label=f"{size}", marker="")
        if size in transfer.best:
            height = float(
                np.interp(math.log(transfer.best[size]), np.log(mean["rate"].to_numpy()), mean["loss"].to_numpy())
            )
            ax.plot([transfer.best[size]], [height], marker="o", color=VERMILLION, ls="", gid=f"best {size}")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlabel("rate")
    ax.legend()
    moves = transfer.words if transfer.exponent is None or transfer.at_edge else f"best rate ∝ size^{transfer.exponent}"
    panel_title(ax, "loss by rate and size", moves, width=34)
