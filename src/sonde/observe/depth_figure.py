"""The picture of a check: signal and gradient by depth."""

from typing import TYPE_CHECKING

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.metrics import WATCHED
from sonde.show.figures.style import BLUE, DOUBLE, FAINT, VERMILLION, footnotes, house_style, new_figure

if TYPE_CHECKING:
    from sonde.observe.check_result import Checked

NAMED = 24  # modules that are named on the axis
PANELS = (("out_rms", BLUE), ("grad_rms", VERMILLION))


def depth(checked: "Checked") -> list[str]:
    """Modules in order of execution, without those that only hold others."""
    names = [name for name in checked.modules if name != "(model)"]
    return [name for name in names if not any(other.startswith(f"{name}.") for other in names)] or checked.modules


def profile(checked: "Checked", metric: str) -> pl.DataFrame:
    """place, module, value, low, high; null where undefined."""
    names = depth(checked)
    found = checked.rows.filter((pl.col("metric") == metric) & pl.col("defined")).select("module", "value")
    base = pl.DataFrame({"place": range(len(names)), "module": names}, schema={"place": pl.Int64, "module": pl.String})
    line = base.join(found, on="module", how="left", maintain_order="left")
    if checked.band is None:
        return line.with_columns(low=pl.lit(None, pl.Float64), high=pl.lit(None, pl.Float64))
    band = checked.band.rows.filter(pl.col("metric") == metric).select("module", "low", "high")
    return line.join(band, on="module", how="left", maintain_order="left")


def draw_profile(checked: "Checked") -> Figure:
    """Two panels, one below the other, over the modules in order of execution."""
    with house_style():
        figure = new_figure(DOUBLE, 4.2, f"{checked.model} at initialisation")
        upper, lower = figure.subplots(2, 1, sharex=True)
        for ax, (metric, colour) in zip((upper, lower), PANELS, strict=True):
            draw(ax, profile(checked, metric), WATCHED[metric].label, colour)
        _name(lower, depth(checked))
        notes = [f"Loss: {checked.loss}."]
        if checked.band is not None:
            notes.append(f"Band: smallest to largest of {checked.band.inits} fresh initialisations.")
        footnotes(figure, notes)
    return figure


def draw(ax: Axes, line: pl.DataFrame, label: str, colour: str) -> None:
    """One metric by depth; on a logarithmic scale, where zero and undefined are gaps."""
    there = line.filter(pl.col("value") > 0)
    ax.set_ylabel(label)
    if there.is_empty():
        ax.text(0.5, 0.5, "undefined or zero everywhere", transform=ax.transAxes, ha="center", color=FAINT)
        return
    values = [value if value and value > 0 else float("nan") for value in line["value"].to_list()]
    ax.plot(line["place"].to_list(), values, color=colour, marker="o")
    band = line.filter((pl.col("low") > 0) & pl.col("high").is_not_null())
    if not band.is_empty():
        ax.fill_between(
            band["place"].to_list(),
            band["low"].to_list(),
            band["high"].to_list(),
            color=colour,
            alpha=0.2,
            lw=0,
        )
    ax.set_yscale("log")


def _name(ax: Axes, names: list[str]) -> None:
    every = -(-len(names) // NAMED)
    places = list(range(0, len(names), every))
    ax.set_xticks(places, [_short(names[place]) for place in places], rotation=45, ha="right")


def _short(name: str) -> str:
    return name if len(name) <= 28 else f"…{name[-27:]}"
