"""What a panel is drawn with: lines with seeds or bands, bars or dots with whiskers, or a text in their place."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from sonde.show.figures.series import Floats, Series
from sonde.show.figures.style import COLOR, FAINT, INK, LINE, MARKER

SEED_LINE = "_seed"
"""The label of a seed's line; matplotlib's legends leave out a label that begins with an underscore."""


def draw_panel(
    ax: Axes,
    lines: Sequence[Series],
    *,
    log: bool,
    names: Mapping[str, str] | None = None,
    marks: int = 0,
    empty: str = "",
) -> None:
    """Draw lines with their bands, or the text `empty` if there are none; the caller sets up the axes.

    `names` replaces labels in the legend, by the key of the line.
    """
    if not lines:
        say_empty(ax, empty)
    for line in lines:
        draw_line(ax, replace(line, label=(names or {}).get(line.key, line.label)), log=log, marks=marks)


def draw_line(ax: Axes, line: Series, *, log: bool, marks: int = 0) -> None:
    """Draw the mean with its band in the colour of its key; with few seeds, a thin line for each instead of a band.

    Up to 60 points all have a marker.  A longer line marks lone points, and `marks` others along it.
    """
    y = line.shown(log)
    low, high = line.band(log)
    if line.few:
        low = high = np.full(y.size, np.nan)
        for values in line.shown_seeds(log):
            ax.plot(line.x, values, color=COLOR[line.key], linewidth=0.6, alpha=0.45, label=SEED_LINE)
    alone = ~np.isnan(y) & np.isnan(np.r_[np.nan, y[:-1]]) & np.isnan(np.r_[y[1:], np.nan])
    if marks:
        alone[np.linspace(0, y.size - 1, marks).round().astype(int)] = True
    every = np.arange(y.size) if y.size <= 60 else np.flatnonzero(alone)
    style: dict[str, Any] = {"color": COLOR[line.key], "linestyle": LINE[line.key]}
    marker = MARKER[line.key] if every.size else ""
    ax.plot(line.x, y, label=line.label, marker=marker, markevery=every.tolist(), **style)
    if not np.isnan(low).all():
        ax.fill_between(line.x, low, high, color=COLOR[line.key], alpha=0.2, linewidth=0)


def draw_bars(ax: Axes, bars: Series, *, thickness: float, cap: float, halo: bool = False) -> None:
    """Draw horizontal bars from 0 to the mean with whiskers for n ≥ 2, and a cross where there is no value.

    `halo` draws a white edge around the whisker, so that it is seen on its bar.
    """
    y, (low, high) = bars.shown(False), bars.band(False)
    there, spread = ~np.isnan(y), ~np.isnan(low)
    if there.any():
        ax.barh(bars.x[there], y[there], height=thickness, color=COLOR[bars.key])
    for ink, width in ((("white", 2.4), (INK, 0.8)) if halo else ((INK, 0.7),)) if spread.any() else ():
        style: dict[str, Any] = {"fmt": "none", "ecolor": ink, "elinewidth": width, "capsize": cap}
        style |= {"capthick": width} if halo else {}
        ax.errorbar(y[spread], bars.x[spread], xerr=np.array([y - low, high - y])[:, spread], **style)
    if not there.all():
        ax.plot(np.zeros((~there).sum()), bars.x[~there], "x", color=FAINT, markersize=4, label="undefined")


def draw_dots(ax: Axes, dots: Series) -> None:
    """Draw means as dots with whiskers on a log axis, which has no zero for a bar to start from."""
    y, (low, high) = dots.shown(True), dots.band(True)
    spread, color = ~np.isnan(low), COLOR[dots.key]
    ax.plot(dots.x, y, MARKER[dots.key], color=color, markersize=4, linestyle="none", label="_mean")
    if spread.any():
        whiskers = np.array([y - low, high - y])[:, spread]
        ax.errorbar(dots.x[spread], y[spread], whiskers, fmt="none", ecolor=color, elinewidth=0.8, capsize=1.2)
    draw_undefined(ax, dots, 0.035)


def draw_undefined(ax: Axes, line: Series, height: float) -> None:
    """Draw crosses near the foot of the panel where the line is undefined; `height` is a share of the panel's."""
    at = line.x[np.isnan(line.mean)]
    if at.size:
        style: dict[str, Any] = {"color": FAINT, "markersize": 4, "transform": ax.get_xaxis_transform()}
        ax.plot(at, np.full(at.size, height), "x", label="undefined", **style)


def draw_rings(ax: Axes, start: Series) -> None:
    """Draw the values at initialisation, beside those after training."""
    rings: dict[str, Any] = {"markersize": 2.4, "markeredgewidth": 0.5, "markerfacecolor": "white"}
    y = start.shown(True)
    ax.plot(start.x, y, "o", markeredgecolor=INK, linestyle="none", label="measured at init", **rings)


def draw_theory(ax: Axes, x: Floats, theory: Floats) -> None:
    """Draw the line that random weights give; nothing if it is empty."""
    if theory.size:
        ax.plot(x, theory, color=INK, linewidth=1, linestyle=(0, (1, 1)), label="theory at init")


def say_empty(ax: Axes, why: str) -> None:
    """Write why a panel is empty, and remove its ticks."""
    ax.text(0.5, 0.5, why, ha="center", va="center", color=FAINT, transform=ax.transAxes)
    ax.set_xticks([])
    ax.set_yticks([])
