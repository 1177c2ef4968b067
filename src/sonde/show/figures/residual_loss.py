"""Figures of the residual study: the training loss of the plain and the residual network."""

import math
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from sonde.analysis.evidence import Evidence, NoData
from sonde.analysis.theory import INPUT_SECOND_MOMENT, lowest_loss
from sonde.core.formatting import (
    gradient_status,
    last_steps,
    loss_change,
    loss_status,
    loss_verdict,
    number,
    sentence_case,
    times_trivial,
    weights,
)
from sonde.core.seed_statistics import over_seeds
from sonde.metrics import TRAINED
from sonde.show.figures.groups import PAIR_MODELS, Lines, Pair, by_step, check_recipe, pair_of
from sonde.show.figures.marks import draw_panel, layer_axis, log_axis, log_limits, log_ticks, write_empty
from sonde.show.figures.residual_gradient import BackwardFlow, backward_flow
from sonde.show.figures.series import Curves, caption, curves, missing_seeds, n_text, point
from sonde.show.figures.style import (
    COLOR,
    DOUBLE,
    FAINT,
    INK,
    LINE,
    MARKER,
    PAPER,
    SINGLE_PANEL,
    TABLE_RULE,
    footnotes,
    legend_above,
    legend_row,
    new_figure,
    panel_grid,
    panel_title,
)

_LOSS_QUANTITIES = ("initial", "final", "final_error", "reduction", "reduction_error")
_VARIANTS = ("scaled", "raw")
_LEARNED = 0.5  # of the loss of predicting zero: a network that ends at or below this half has learned
_DEPTH_FIELDS = ("width", "output", "steps", "batch", "lr", "samples", "rule", "task", "scale")
"""What the runs of `loss_by_depth` have in common; network, depth, weight scale and seed differ."""


@dataclass(frozen=True)
class LossEnds:
    """First and final loss of both networks and the reduction in per cent above the floor, over seeds."""

    pair: Pair
    summary: pl.DataFrame

    def of(self, model: str, quantity: str) -> tuple[float, float, int]:
        """Mean, sample standard deviation (NaN for n < 2) and n of one of `initial`, `final`, `reduction`."""
        mean, std, n = self.summary.filter(model=model, quantity=quantity).select("mean", "std", "n").row(0)
        return (math.nan if mean is None else mean), (math.nan if std is None else std), n

    def error(self, model: str, quantity: str) -> float:
        """Standard error of the mean of `final` or `reduction`, from the noise of the batches."""
        mean, _, n = self.of(model, f"{quantity}_error")
        return mean / math.sqrt(n) if n else math.nan

    @property
    def sentences(self) -> dict[str, str]:
        """Whether each network learned, with its numbers."""
        found = {}
        for model, label in self.pair.labels.items():
            fell, final = (self.of(model, quantity)[0] for quantity in ("reduction", "final"))
            error = self.error(model, "reduction")
            status = loss_verdict(fell, final, self.pair.trivial_loss, self.pair.floor(model), error)
            found[model] = f"{label} {status}"
        return found


def loss_ends(pair: Pair, rows: pl.DataFrame) -> LossEnds:
    """Compute each run's first and final loss; a run that lacks one of the last steps has no final loss."""
    first, last = rows["step"].min(), last_steps(int(rows["step"].max()))  # type: ignore[arg-type]
    found = []
    for (model, run), of_run in rows.group_by("model", "run", maintain_order=True):
        losses = dict(of_run.filter("defined").select("step", "value").iter_rows())
        ending = [losses.get(step, math.nan) for step in last]
        change = loss_change(losses.get(first, math.nan), ending, pair.floor(str(model)))
        found.append((model, run, change.initial, change.final, change.final_error, change.fell, change.fell_error))
    ends = pl.DataFrame(found, schema=["model", "run", *_LOSS_QUANTITIES], orient="row")
    tidy = ends.unpivot(_LOSS_QUANTITIES, index=["model", "run"], variable_name="quantity")
    tidy = tidy.with_columns(defined=pl.col("value").is_finite())
    return LossEnds(pair, over_seeds(tidy, "model", "quantity"))


def draw_training_loss(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 1: training loss against steps, plain and residual."""
    pair = pair_of(evidence)
    losses = by_step(pair)
    sentences = loss_ends(pair, losses.rows).sentences.values()
    notes = [*pair.floors, *losses.gaps(log=True, unit="steps")]

    figure = new_figure(SINGLE_PANEL, 3.4, pair.title("Training loss", losses.summary))
    ax = figure.add_subplot()
    _draw_losses(ax, losses, pair)
    legend_above(ax, 2)
    footnotes(figure, [*sentences, *notes])
    shown = f"Training loss ({pair.loss} of each batch) against steps. The final loss is the mean of the last tenth."
    return figure, caption(pair, losses.summary, f"{'; '.join(sentences)}.", shown, notes)


def _draw_losses(ax: Axes, losses: Curves, pair: Pair) -> None:
    """Draw losses on a log axis, beside the loss of predicting zero and the lowest possible, if they are known."""
    draw_panel(ax, losses.lines, log=True)
    extents = losses.extents(log=True)
    style: dict[str, Any] = {"linewidth": 0.8, "zorder": 1}
    if pair.trivial_loss is not None:
        ax.axhline(pair.trivial_loss, color=FAINT, linestyle=(0, (1, 1.5)), label="predicting zero", **style)
        extents.append(np.array([pair.trivial_loss]))
    for line in losses.lines:
        if floor := pair.floor(line.key):
            label = f"lowest for {line.label}, {number(floor, 3)}"
            ax.axhline(floor, color=COLOR[line.key], linestyle=(0, (5, 2, 1, 2)), label=label, **style)
            extents.append(np.array([floor]))
    log_axis(ax, log_limits(*extents))
    ax.set_xlabel("optimiser step")
    ax.set_ylabel(f"batch loss ({'MSE' if pair.loss == 'mean squared error' else pair.loss})")


def draw_learning_comparison(evidence: Evidence) -> tuple[Figure, str]:
    """Figure 10: what both networks learned, side by side."""
    pair = pair_of(evidence)
    losses, flow = by_step(pair), backward_flow(pair)
    gradients = flow.norms
    ends = loss_ends(pair, losses.rows)
    notes = list(pair.floors)
    notes += [note for line in losses.lines for note in line.gaps(log=True, unit="steps")]
    notes += [note for line in gradients.lines for note in line.gaps(log=True, unit="layers")]
    notes += missing_seeds(pair, losses.rows) + missing_seeds(pair, gradients.rows)

    counts = pl.concat([part.summary.select("model", "n") for part in (losses, gradients)])
    figure = new_figure(DOUBLE, 5.0, pair.title(f"Learning compared, {flow.when}", counts))
    (loss, zero), (gradient, table) = figure.subplots(2, 2)
    _draw_losses(loss, losses, pair)
    legend_above(loss, 2)
    _draw_against_zero(zero, ends)
    draw_panel(gradient, gradients.lines, log=True)
    log_axis(gradient, log_limits(*gradients.extents(log=True)))
    gradient.set_ylabel(TRAINED["preact_grad_norm"].label)
    layer_axis(gradient, pair.depth)
    legend_above(gradient)
    _write_table(table, pair, _table(ends, flow))
    footnotes(figure, notes)
    relative = " relative to that of predicting zero, both counted from the lowest loss that the network can reach"
    shown = (
        f"Batch loss against steps; final loss (mean of the last tenth of the steps){relative * pair.identity}; "
        f"gradient norm per layer {flow.when}; summary."
    )
    return figure, caption(pair, counts, f"{'; '.join(ends.sentences.values())}.", shown, notes)


def _draw_against_zero(ax: Axes, ends: LossEnds) -> None:
    """Draw the final loss relative to that of predicting zero as a stem from 1, with a sentence above each."""
    trivial = ends.pair.trivial_loss
    if trivial is None:
        write_empty(ax, "no reference loss is known for this task")
        return
    extents = [np.array([1.0, _LEARNED])]
    for height, model in enumerate(reversed(PAIR_MODELS)):
        floor = ends.pair.floor(model)
        mean, std, n = ends.of(model, "final")
        times, spread = times_trivial(mean, trivial, floor), std / (trivial - (floor or 0))
        stem = point(model, ends.pair.labels[model], height, times, spread, n)
        text = "\n".join(textwrap.wrap(ends.sentences[model], 50))
        words: dict[str, Any] = {"transform": ax.get_yaxis_transform(), "va": "bottom", "fontsize": 7.5, "color": INK}
        ax.text(0, height + 0.16, text, bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.0}, **words)
        style: dict[str, Any] = {"color": COLOR[model], "marker": MARKER[model], "linestyle": LINE[model]}
        ax.plot([1, times], [height, height], markevery=[1], markersize=6, label=stem.label, **style)
        if n >= 2:
            low, high = stem.band(log=True)
            ax.plot([low[0], high[0]], [height, height], color=INK, linewidth=0.8, label="± s.d. over seeds")
        extents.append(stem.extent(log=True))
    _draw_zero_and_half(ax.axvline)
    ax.set_xscale("log")
    ax.set_xlim(*log_limits(*extents))
    ax.xaxis.set_major_locator(FixedLocator(log_ticks(ax.get_xlim())))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"×{number(value)}"))
    ax.set_ylim(-0.4, 1.75)
    ax.set_yticks([])
    ax.grid(False)
    ax.set_xlabel("final loss ÷ that of predicting zero")
    ax.spines.left.set_visible(False)
    legend_above(ax, 2)


def _table(ends: LossEnds, flow: BackwardFlow) -> list[tuple[str, list[str]]]:
    """The rows of the summary panel: a name, and its value for each network."""
    trivial = ends.pair.trivial_loss
    finals = [ends.of(model, "final") for model in PAIR_MODELS]
    floors = [ends.pair.floor(model) for model in PAIR_MODELS]
    losses = []
    for model, (mean, std, n) in zip(PAIR_MODELS, finals, strict=True):
        losses.append(_with_spread(mean, ends.error(model, "final") if n < 2 else std))
    rows = [("final loss", losses)]
    if None not in floors:
        rows.append(("lowest possible", [number(floor, 3) for floor in floors if floor is not None]))
    if trivial is not None:
        times = [times_trivial(mean, trivial, floor) for (mean, _, _), floor in zip(finals, floors, strict=True)]
        rows.append(("÷ predicting zero", [_times(one) for one in times]))
    fell = [ends.of(model, "reduction")[0] for model in PAIR_MODELS]
    status = [loss_status(f, final[0], trivial, floor) for f, final, floor in zip(fell, finals, floors, strict=True)]
    return [
        *rows,
        ("layer-1 gradient", [_with_spread(line.mean[0], line.std[0]) for line in flow.norms.lines]),
        ("÷ last layer", [_times(flow.ratio(model)) for model in PAIR_MODELS]),
        ("gradient", [gradient_status(flow.ratio(model)).removeprefix("gradient ") for model in PAIR_MODELS]),
        ("status", status),
    ]


def _times(ratio: float) -> str:
    return "undefined" if math.isnan(ratio) else f"×{number(ratio)}"


def _with_spread(mean: float, std: float) -> str:
    """Mean ± sample standard deviation to the same digit; the mean alone if there is no spread."""
    if math.isnan(std) or std == 0:
        return number(mean)
    power = math.floor(math.log10(max(abs(mean), std)))
    scale = 10.0**power if not -4 < power < 4 else 1.0
    digits = min(max(0, 1 - math.floor(math.log10(std / scale))), 4)
    text = f"{mean / scale:.{digits}f} ± {std / scale:.{digits}f}"
    return text if scale == 1 else f"({text})e{power}"


def _write_table(ax: Axes, pair: Pair, rows: list[tuple[str, list[str]]]) -> None:
    """Write rows of text in three columns, with rules between."""
    ax.axis("off")
    ax.set(xlim=(0, 1), ylim=(len(rows) + 1, 0))
    columns = dict(zip(PAIR_MODELS, (0.33, 0.69), strict=True))
    for model, x in columns.items():
        ax.text(x, 0.5, pair.labels[model], color=COLOR[model], weight="bold", va="center", fontsize=7.5)
    for top, (name, values) in enumerate(rows, 1):
        ax.axhline(top, color=TABLE_RULE, linewidth=0.6)
        ax.text(0, top + 0.5, name, color=FAINT, va="center", fontsize=7)
        weight = "bold" if name == "status" else "normal"
        for x, text in zip(columns.values(), values, strict=True):
            ax.text(x, top + 0.5, text, color=INK, va="center", weight=weight, fontsize=7)


def _recipe(runs: pl.DataFrame) -> str:
    width, steps, batch, lr, samples = (runs[field][0] for field in ("width", "steps", "batch", "lr", "samples"))
    return (
        f"1 to {max(runs['depth'].to_list())} layers of width {width:,}, {steps:,} steps of batch {batch:,}, "
        f"learning rate {lr:g}, {samples:,} training samples, {runs['task_label'][0]} task"
    )


def _networks(runs: pl.DataFrame, recipe: str, source: str) -> Lines:
    """A line for each network."""
    labels = dict(runs.select("model", "label").unique(maintain_order=True).iter_rows())
    return Lines(runs, labels, recipe, source, by="model")


def draw_loss_by_depth(evidence: Evidence) -> tuple[Figure, str]:
    """Final loss against depth, of networks that can represent the identity: those with a linear output."""
    runs = evidence.runs.filter(pl.col("model").is_in(PAIR_MODELS), task="identity").sort("model", "depth", "seed")
    if runs.is_empty():
        raise NoData(f"no plain_mlp or res_mlp with a linear output in {evidence.source}")
    check_recipe(runs, _DEPTH_FIELDS, free="network, depth, weight scale and seed")
    rows = _final_losses(evidence, runs)
    if not rows["defined"].any():
        raise NoData(f"no defined batch_loss of the last steps in {evidence.source}")
    recipe, source = _recipe(runs), evidence.source
    groups = {variant: _networks(_of_variant(runs, variant), recipe, source) for variant in _VARIANTS}
    found = {variant: curves(group, _of_variant(rows, variant), "depth") for variant, group in groups.items()}
    notes = [note for lines in found.values() for note in lines.gaps(log=True, unit="depths")]

    summary = pl.concat([lines.summary for lines in found.values()])
    title = f"Final loss against depth, linear output, {n_text(groups[_VARIANTS[0]], summary)}"
    figure = new_figure(DOUBLE, 3.2, title)
    (panels,), legend = panel_grid(figure, 1, 2)
    for ax, (variant, losses) in zip(panels, found.items(), strict=True):
        _draw_final_losses(ax, losses)
        panel_title(ax, sentence_case(weights(variant)))
    panels[0].set_ylabel("final loss ÷ that of predicting zero")
    legend_row(legend, panels)
    footnotes(figure, notes)
    shown = (
        "Final training loss (mean squared error, mean of the last tenth of the steps) against the number of layers, "
        "of networks whose last layer is linear: all of them can represent the identity, so none has a floor."
    )
    results = ". ".join(text for variant, losses in found.items() for text in _learned_at(losses, weights(variant)))
    every = _networks(runs, recipe, source)
    return figure, caption(every, summary, f"Final loss ÷ that of predicting zero: {results}.", shown, notes)


def _of_variant(table: pl.DataFrame, variant: str) -> pl.DataFrame:
    """A network of one layer is the same with either weight scale, so it belongs to both."""
    return table.filter((pl.col("variant") == variant) | (pl.col("depth") == 1))


def _final_losses(evidence: Evidence, runs: pl.DataFrame) -> pl.DataFrame:
    """The runs, with `value` = final loss ÷ that of predicting zero, and `defined`."""
    losses = evidence.rows_with("batch_loss").filter("defined")
    by_run = {run: dict(of.select("step", "value").iter_rows()) for (run,), of in losses.group_by("run")}

    def final(run: dict[str, Any]) -> float:
        known = by_run.get(run["run"], {})
        ending = [known.get(step, math.nan) for step in last_steps(run["steps"])]
        floor = lowest_loss(run["model"], run["task"], run["output"])
        return loss_change(known.get(1, math.nan), ending, floor).final / INPUT_SECOND_MOMENT

    values = pl.Series([final(run) for run in runs.iter_rows(named=True)], dtype=pl.Float64)
    return runs.with_columns(value=values, defined=values.is_finite())


def _draw_final_losses(ax: Axes, losses: Curves) -> None:
    """Each panel has its own log axis: with weights × 1 the residual network ends far above all others."""
    log_axis(ax, log_limits(np.array([_LEARNED, 1.0]), *losses.extents(log=True)))
    _draw_zero_and_half(ax.axhline)
    draw_panel(ax, losses.lines, log=True)
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(FixedLocator(sorted({float(x) for line in losses.lines for x in line.x})))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    ax.set_xlabel("layers L")


def _draw_zero_and_half(draw: Callable[..., object]) -> None:
    """Draw the loss of predicting zero and half of it; `draw` is `ax.axhline` or `ax.axvline`."""
    level: dict[str, Any] = {"color": FAINT, "linewidth": 0.8, "zorder": 1}
    draw(1, linestyle=(0, (1, 1.5)), label="predicting zero", **level)
    draw(_LEARNED, linestyle=(0, (5, 2)), label="half of it: learned", **level)


def _learned_at(losses: Curves, scale: str) -> Iterator[str]:
    """At which depths each network learned, by the limit of the study's findings."""
    for line in losses.lines:
        learned = [int(x) for x, loss in zip(line.x, line.mean, strict=True) if loss <= _LEARNED]
        at = f"at most half at L = {', '.join(map(str, learned))}" if learned else "never at most half"
        yield f"{line.label}, {scale}: {at}, ×{number(float(line.mean[-1]))} at L = {line.x[-1]:.0f}"
