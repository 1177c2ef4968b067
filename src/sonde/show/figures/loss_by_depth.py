"""Final loss against depth, of networks that can represent the identity: plain and residual with a linear output."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from sonde.analysis.evidence import Evidence, NoData
from sonde.analysis.theory import INPUT_SECOND_MOMENT, lowest_loss
from sonde.core.formatting import last_steps, loss_change, number, weights
from sonde.show.figures.caption import caption, n_text
from sonde.show.figures.cohort import check_recipe
from sonde.show.figures.marks import draw_panel
from sonde.show.figures.pair import MODELS
from sonde.show.figures.scales import log_axis, log_limits
from sonde.show.figures.series import Curves, curves
from sonde.show.figures.style import DOUBLE, FAINT, footnotes, legend_row, new_figure, panel_title

VARIANTS = ("scaled", "raw")
RECIPE = ("width", "output", "steps", "batch", "lr", "samples", "rule", "task", "scale")
"""What the runs must have in common; network, depth, weight scale and seed may differ."""


@dataclass(frozen=True)
class OfVariant:
    """The runs of both networks at every depth, with weights of one scale."""

    runs: pl.DataFrame
    variant: str
    source: str
    by: ClassVar[str] = "model"

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.runs.select("model", "label").unique(maintain_order=True).iter_rows())

    @property
    def recipe(self) -> str:
        width, steps, batch, lr, samples = (
            self.runs[field][0] for field in ("width", "steps", "batch", "lr", "samples")
        )
        return (
            f"1 to {max(self.runs['depth'].to_list())} layers of width {width:,}, {steps:,} steps of batch {batch:,}, "
            f"learning rate {lr:g}, {samples:,} training samples, {self.runs['task_label'][0]} task"
        )


def draw(evidence: Evidence) -> tuple[Figure, str]:
    runs = evidence.runs.filter(pl.col("model").is_in(MODELS), task="identity").sort("model", "depth", "seed")
    if runs.is_empty():
        raise NoData(f"no plain_mlp or res_mlp with a linear output in {evidence.source}")
    check_recipe(runs, RECIPE, free="network, depth, weight scale and seed")
    rows = _final_losses(evidence, runs)
    if not rows["defined"].any():
        raise NoData(f"no defined batch_loss of the last steps in {evidence.source}")
    groups = [OfVariant(_of_variant(runs, variant), variant, evidence.source) for variant in VARIANTS]
    found = {group.variant: curves(group, _of_variant(rows, group.variant), "depth") for group in groups}
    notes = [note for lines in found.values() for note in lines.gaps(log=True, unit="depths")]

    summary = pl.concat([lines.summary for lines in found.values()])
    title = f"Final loss against depth, linear output, {n_text(groups[0], summary)}"
    figure = new_figure(DOUBLE, 3.2, title)
    grid = figure.add_gridspec(2, 2, height_ratios=(1, 0.06))
    panels = [figure.add_subplot(grid[0, column]) for column in range(2)]
    for ax, group in zip(panels, groups, strict=True):
        draw_losses(ax, found[group.variant])
        panel_title(ax, weights(group.variant)[0].upper() + weights(group.variant)[1:])
    panels[0].set_ylabel("final loss ÷ that of predicting zero")
    legend_row(figure.add_subplot(grid[1, :]), panels)
    footnotes(figure, notes)
    shown = (
        "Final training loss (mean squared error, mean of the last tenth of the steps) against the number of layers, "
        "of networks whose last layer is linear: all of them can represent the identity, so none has a floor."
    )
    said = ". ".join(text for one in found.values() for text in _words(one, weights(one.group.variant)))  # type: ignore[attr-defined]
    every = OfVariant(runs, "", evidence.source)
    return figure, caption(every, summary, shown, f"Look at where the lines reach 1. {said}.", notes)


def _of_variant(table: pl.DataFrame, variant: str) -> pl.DataFrame:
    """A single layer is the same network with either scale."""
    return table.filter((pl.col("variant") == variant) | (pl.col("depth") == 1))


def _final_losses(evidence: Evidence, runs: pl.DataFrame) -> pl.DataFrame:
    """Of every run: its final loss ÷ that of predicting zero."""
    losses = evidence.rows.filter(metric="batch_loss").filter("defined")
    by_run = {run: dict(of.select("step", "value").iter_rows()) for (run,), of in losses.group_by("run")}

    def final(run: dict[str, Any]) -> float:
        known = by_run.get(run["run"], {})
        ending = [known.get(step, math.nan) for step in last_steps(run["steps"])]
        floor = lowest_loss(run["model"], run["task"], run["output"])
        return loss_change(known.get(1, math.nan), ending, floor).final / INPUT_SECOND_MOMENT

    values = [final(run) for run in runs.iter_rows(named=True)]
    return runs.with_columns(value=pl.Series(values, dtype=pl.Float64)).with_columns(
        defined=pl.col("value").is_finite()
    )


def draw_losses(ax: Axes, losses: Curves) -> None:
    """On a log axis of its own: with weights × 1 the residual network ends far above all others."""
    log_axis(ax, log_limits(np.array([0.5, 1.0]), *losses.extents(log=True)))
    dots = {"color": FAINT, "linewidth": 0.8, "zorder": 1}
    ax.axhline(1, linestyle=(0, (1, 1.5)), label="predicting zero", **dots)  # type: ignore[arg-type]
    ax.axhline(0.5, linestyle=(0, (5, 2)), label="half of it: learned", **dots)  # type: ignore[arg-type]
    draw_panel(ax, losses.lines, log=True)
    ax.set_xscale("log")
    depths = sorted({float(x) for line in losses.lines for x in line.x})
    ax.xaxis.set_major_locator(FixedLocator(depths))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    ax.set_xlabel("layers L")


def _words(losses: Curves, scale: str) -> Iterator[str]:
    """At which depths each network learned, by the limits of the study's findings."""
    for line in losses.lines:
        learned = [int(x) for x, loss in zip(line.x, line.mean, strict=True) if loss <= 0.5]
        at = f"at most half at L = {', '.join(map(str, learned))}" if learned else "never at most half"
        yield f"{line.label}, {scale}: {at}, ×{number(float(line.mean[-1]))} at L = {line.x[-1]:.0f}"
