"""What a panel is drawn with: lines with seeds or bands, bars or dots with whiskers, or a text in their place.

Axes are chosen from the data, so that they contain all of it and one network does not flatten the other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

from sonde.core.formatting import accuracy, number
from sonde.show.figures.series import Floats, Series
from sonde.show.figures.style import BAND, COLOR, FAINT, INK, LINE, MARKER, PAPER, SEED_LINE

PERCENT = PercentFormatter(1, decimals=0, symbol=" %")
_WHISKER = "± s.d. over seeds"

FLATTENED = 30.0
"""If the largest magnitudes of two networks differ by more than this factor, they do not fit on one linear axis."""


def linear_limits(*values: Floats) -> tuple[float, float]:
    """Limits of a linear axis that contain every value."""
    every = _finite(*values)
    if not every.size:
        return 0.0, 1.0
    low, high = float(every.min()), float(every.max())
    margin = 0.06 * (high - low) or 0.05
    return low - margin, high + margin


def log_limits(*values: Floats) -> tuple[float, float]:
    """Limits of a log axis that contain every positive value, with room above and below."""
    every = _finite(*values)
    every = every[every > 0]
    if not every.size:
        return 0.1, 1.0
    low, high = np.log10(every.min()), np.log10(every.max())
    room = max(0.06 * (high - low), 0.15)
    return float(10 ** max(low - room, -307)), float(10 ** min(high + room, 308.25))


def _finite(*values: Floats) -> Floats:
    every: Floats = np.concatenate([np.array([]), *(np.ravel(part) for part in values)])
    return every[np.isfinite(every)]


def log_axis(ax: Axes, limits: tuple[float, float], *, mathtext: bool = False, which: Literal["x", "y"] = "y") -> None:
    """Make an axis logarithmic, with few labels: whole decades, or round numbers if it spans less than three.

    With `mathtext` powers are set as mathematics, for fonts that lack superscript characters.  That is slower.
    """
    ax.set(**{f"{which}scale": "log", f"{which}lim": limits})
    axis = ax.xaxis if which == "x" else ax.yaxis
    decades = len(_powers(limits)) >= 3
    axis.set_major_locator(FixedLocator(log_ticks(limits)))
    axis.set_minor_locator(NullLocator())
    power = _power_as_math if mathtext else _power_of_ten
    axis.set_major_formatter(FuncFormatter(lambda value, _: power(value) if decades else number(value)))


def log_ticks(limits: tuple[float, float]) -> list[float]:
    """At most seven whole decades, or round numbers if the limits contain fewer than three."""
    powers = _powers(limits)
    if len(powers) < 3:
        return _round_numbers(limits)
    stride = -(-len(powers) // 7)
    return [10.0**power for power in powers if power % stride == 0]


def _powers(limits: tuple[float, float]) -> range:
    return range(int(np.ceil(np.log10(limits[0]))), int(np.floor(np.log10(limits[1]))) + 1)


def _power_of_ten(value: float) -> str:
    """10⁻¹²."""
    return "10" + str(round(np.log10(value))).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _power_as_math(value: float) -> str:
    return f"$10^{{{round(np.log10(value))}}}$"


def _round_numbers(limits: tuple[float, float]) -> list[float]:
    first, last = int(np.floor(np.log10(limits[0]))), int(np.ceil(np.log10(limits[1])))
    ticks: list[float] = []
    for steps in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        ticks = [tick for tick in ticks if limits[0] <= tick <= limits[1]]
        if len(ticks) >= 3:
            break
    return ticks


def wide_threshold(groups: list[Floats]) -> float | None:
    """The magnitude up to which a symmetric-log axis is linear, or None if a linear axis serves every group."""
    sizes = [float(np.nanmax(np.abs(group), initial=0)) for group in groups]
    small, large = min(sizes), max(sizes)
    if small == 0 or large / small <= FLATTENED:
        return None
    return float(10 ** np.floor(np.log10(small)))


def wide_scale(axis: Axis, groups: list[Floats], *, least: float = 0.0) -> float | None:
    """Make an axis linear, or symmetric-log if the groups differ too much in size.

    Returns the magnitude up to which a symmetric-log axis is linear, which is at least `least`; None if it is linear.
    """
    name = "y" if axis is axis.axes.yaxis else "x"
    set_scale, set_limits = (getattr(axis.axes, f"set_{name}{what}") for what in ("scale", "lim"))
    threshold = wide_threshold(groups)
    if threshold is not None and least > threshold:
        threshold = float(10 ** np.ceil(np.log10(least)))
    every = _finite(*groups)
    low, high = (float(every.min()), float(every.max())) if every.size else (-1.0, 1.0)
    if threshold is None or max(-low, high) <= threshold:
        room = 0.06 * (high - low) or 0.06 * abs(high) or 1.0
        set_limits(low - room, high + room)
        return None
    set_scale("symlog", linthresh=threshold)
    set_limits(
        3 * low if low < -threshold else low - 0.4 * threshold, 3 * high if high > threshold else high + 0.4 * threshold
    )
    axis.set_major_locator(FixedLocator(symlog_ticks(2 * min(low, 0), 2 * max(high, 0), threshold)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(signed_ticks())
    return threshold


def signed_ticks() -> FuncFormatter:
    """Format ticks as short numbers, with the minus sign that matplotlib's own ticks have."""
    return FuncFormatter(lambda value, _: ("−" if value < 0 else "") + number(abs(value)))


def symlog_ticks(low: float, high: float, threshold: float) -> list[float]:
    """Zero and whole decades from the threshold outward, at most five on each side."""
    first, last = round(np.log10(threshold)), int(np.floor(np.log10(max(-low, high, threshold))))
    stride = -(-(last - first + 1) // 5)
    decades = [10.0**power for power in range(first, last + 1, stride)]
    ticks = [-decade for decade in reversed(decades)] + [0.0] + decades
    return [tick for tick in ticks if low <= tick <= high]


def layer_axis(ax: Axes, depth: int, first: int = 1, zero: str = "input") -> None:
    """Put ticks at the first layer, the last and round ones between; `zero` is the label of layer 0."""
    stride = max(5 * round(depth / 20), 1) if depth > 10 else 1
    inner = [at for at in range(stride, depth, stride) if at > first and depth - at >= 0.4 * stride]
    ticks = sorted({first, *inner, depth})
    ax.set_xticks(ticks, [zero if at == 0 else str(at) for at in ticks])
    ax.set_xlabel("layer")


def epoch_axis(ax: Axes, lines: Sequence[Series]) -> None:
    """Show whole epochs from the first to the last of the lines, with room for the markers."""
    first, last = min(line.x[0] for line in lines), max(line.x[-1] for line in lines)
    room = 0.03 * (last - first) or 0.5
    ax.set_xlim(first - room, last + room)
    ticks = MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]).tick_values(first, last)
    ax.set_xticks([tick for tick in ticks if first <= tick <= last and tick == round(tick)])
    ax.set_xlabel("epoch")


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
        write_empty(ax, empty)
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
        ax.fill_between(line.x, low, high, color=COLOR[line.key], alpha=0.2, linewidth=0, label=BAND)


def draw_bars(ax: Axes, bars: Series) -> None:
    """Draw horizontal bars from 0 to the mean with whiskers for n ≥ 2, and a cross where there is no value.

    An edge in the colour of the paper around the whisker lets it be seen on its bar.
    """
    y, (low, high) = bars.shown(False), bars.band(False)
    there, spread = ~np.isnan(y), ~np.isnan(low)
    if there.any():
        ax.barh(bars.x[there], y[there], height=0.62, color=COLOR[bars.key])
    for ink, width, label in ((PAPER, 2.4, ""), (INK, 0.8, _WHISKER)) if spread.any() else ():
        style: dict[str, Any] = {"fmt": "none", "ecolor": ink, "elinewidth": width, "capsize": 2.2, "capthick": width}
        whiskers = np.array([y - low, high - y])[:, spread]
        ax.errorbar(y[spread], bars.x[spread], xerr=whiskers, label=label or None, **style)
    if not there.all():
        ax.plot(np.zeros((~there).sum()), bars.x[~there], "x", color=FAINT, markersize=4, label="undefined")


def draw_dots(ax: Axes, dots: Series) -> None:
    """Draw means as dots with whiskers on a log axis, which has no zero for a bar to start from."""
    y, (low, high) = dots.shown(True), dots.band(True)
    spread, color = ~np.isnan(low), COLOR[dots.key]
    ax.plot(dots.x, y, MARKER[dots.key], color=color, markersize=4, linestyle="none", label=dots.label)
    if spread.any():
        whiskers = np.array([y - low, high - y])[:, spread]
        style: dict[str, Any] = {"fmt": "none", "ecolor": color, "elinewidth": 0.8, "capsize": 1.2, "label": _WHISKER}
        ax.errorbar(dots.x[spread], y[spread], whiskers, **style)
    draw_undefined(ax, dots, 0.035)


def draw_undefined(ax: Axes, line: Series, height: float) -> None:
    """Draw crosses near the foot of the panel where the line is undefined; `height` is a share of the panel's."""
    at = line.x[np.isnan(line.mean)]
    if at.size:
        style: dict[str, Any] = {"color": FAINT, "markersize": 4, "transform": ax.get_xaxis_transform()}
        ax.plot(at, np.full(at.size, height), "x", label="undefined", **style)


def draw_theory(ax: Axes, x: Floats, theory: Floats) -> None:
    """Draw the line that random weights give; nothing if it is empty."""
    if theory.size:
        ax.plot(x, theory, color=INK, linewidth=1, linestyle=(0, (1, 1)), label="theory at init")


def percent_axis(ax: Axes, *values: Floats, chance: float | None = None) -> None:
    """Make the y axis one of accuracies, from below the lowest value and chance up to 100 %; draw a line for chance.

    Nothing is clipped at the upper end, where a line at 100 % lies.
    """
    for artist in ax.lines:
        artist.set_clip_on(False)
    known = [] if chance is None else [np.array([chance])]
    low, _ = linear_limits(*values, *known, np.array([1.0]))
    ax.set_ylim(max(low, 0.0), 1.0)
    ax.yaxis.set_major_formatter(PERCENT)
    if chance is not None:
        draw_chance(ax.axhline, chance)


def draw_chance(draw: Callable[..., object], chance: float) -> None:
    """Draw the accuracy of guessing as a line across the panel; `draw` is `ax.axhline` or `ax.axvline`."""
    style: dict[str, Any] = {"color": FAINT, "linewidth": 0.9, "linestyle": (0, (1, 1.5)), "zorder": 1}
    draw(chance, label=f"guessing, {accuracy(chance)}", **style)


def write_empty(ax: Axes, why: str) -> None:
    """Write why a panel is empty, and remove its ticks."""
    ax.text(0.5, 0.5, why, ha="center", va="center", color=FAINT, transform=ax.transAxes)
    ax.set_xticks([])
    ax.set_yticks([])
