"""A metric against layers at one epoch, one line per rule."""

from collections.abc import Iterable
from dataclasses import replace

import polars as pl
from matplotlib.axes import Axes

from sonde.figures.marks import Series, draw_line
from sonde.spreads import over_seeds


def common_epoch(rows: pl.DataFrame) -> int | None:
    """The last epoch at which every run has every metric it has at all."""
    held = rows.select("run", "metric", "epoch").unique()
    wanted = held.select("run", "metric").unique().height
    shared = held.group_by("epoch").len().filter(pl.col("len") == wanted)["epoch"].to_list()
    return int(max(shared)) if shared else None


def latest(rows: pl.DataFrame, epoch: int | None) -> tuple[pl.DataFrame, list[str]]:
    """The rows of one epoch, the last where none is given, and a note where that is not the whole story."""
    last = max(rows["epoch"].to_list())
    chosen = rows.filter(pl.col("epoch") == (last if epoch is None else epoch))
    runs, lacking = rows["run"].n_unique(), rows["run"].n_unique() - chosen["run"].n_unique()
    if lacking:
        return chosen, [f"{lacking} of {runs} runs have no values at epoch {last}."]
    if epoch is not None and last > epoch:
        return chosen, [f"Epoch {epoch} is the last that every run has; some have values up to epoch {last}."]
    return chosen, []


def over_layers(rows: pl.DataFrame, layers: Iterable[int]) -> pl.DataFrame:
    """Mean, spread and n over seeds for every rule with rows and every layer; no rows is n = 0."""
    grid = rows.select(pl.col("rule").unique()).join(
        pl.DataFrame({"layer": list(layers)}, schema={"layer": pl.Int64}), how="cross"
    )
    summary = over_seeds(rows, "rule", "layer")
    full = grid.join(summary, on=["rule", "layer"], how="left").with_columns(pl.col("n").fill_null(0))
    return full.sort("rule", "layer")


def draw_layers(ax: Axes, lines: list[Series], names: dict[str, str], *, log: bool) -> None:
    for line in lines:
        draw_line(ax, replace(line, label=names[line.key]), log=log)
