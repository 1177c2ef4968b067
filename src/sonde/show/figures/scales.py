"""Axes chosen from the data, so that they contain all of it and one network does not flatten the other."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

from sonde.core.formatting import number
from sonde.show.figures.series import Floats, Series

PERCENT = PercentFormatter(1, decimals=0, symbol=" %")

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


def log_axis(ax: Axes, limits: tuple[float, float], *, mathtext: bool = False) -> None:
    """Make the y axis logarithmic, with few labels: whole decades, or round numbers if it spans less than three.

    With `mathtext` powers are set as mathematics, for fonts that lack superscript characters.  That is slower.
    """
    ax.set_yscale("log")
    ax.set_ylim(*limits)
    powers = range(int(np.ceil(np.log10(limits[0]))), int(np.floor(np.log10(limits[1]))) + 1)
    decades = len(powers) >= 3
    if decades:
        stride = -(-len(powers) // 7)
        ticks = [10.0**power for power in powers if power % stride == 0]
    else:
        ticks = _round_numbers(limits)
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.set_minor_locator(NullLocator())
    power = _power_as_math if mathtext else _power_of_ten
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: power(value) if decades else number(value)))


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
