"""Lines and bars of a summary.  What is undefined is a gap; what a log axis cannot show is said."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from matplotlib.axes import Axes

from sonde.figures.style import COLOR, FAINT, LINE, MARKER

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """Summary of one network or rule along layers, steps or epochs; NaN where there is no value."""

    key: str  # the network or rule: its colour, marker and line style
    label: str
    x: Floats
    mean: Floats
    std: Floats
    n: npt.NDArray[np.int64]
    least: Floats  # smallest value of any seed

    def shown(self, log: bool) -> Floats:
        """The means an axis can show."""
        return np.where(self.mean > 0, self.mean, np.nan) if log else self.mean

    def band(self, log: bool) -> tuple[Floats, Floats]:
        """Mean − and + sample standard deviation, NaN for n < 2.

        On a log axis a lower edge that is not above 0 ends at the smallest seed instead, and none goes
        below the smallest positive value of the line.
        """
        spread = np.where(self.n >= 2, self.std, np.nan)
        low, high = self.shown(log) - spread, self.shown(log) + spread
        if log:
            low = np.where(low <= 0, self.least, low)
            low = np.where(np.isnan(low), low, np.fmax(low, self._smallest()))
        return low, high

    def extent(self, log: bool) -> Floats:
        """Everything an axis has to contain."""
        return np.concatenate([self.shown(log), *self.band(log)])

    def cut(self) -> bool:
        """Whether a log axis cuts the band short."""
        return bool((self.shown(True) - np.where(self.n >= 2, self.std, np.nan) <= 0).any())

    def _smallest(self) -> float:
        return float(np.min(self.least[self.least > 0], initial=np.inf))


def series(summary: pl.DataFrame, key: str, label: str, along: str = "layer", *, by: str = "model") -> Series:
    """The summary of one network or rule as arrays."""
    part = summary.filter(pl.col(by) == key).sort(along)
    return Series(
        key=key,
        label=label,
        x=_floats(part[along]),
        mean=_floats(part["mean"]),
        std=_floats(part["std"]),
        n=part["n"].to_numpy(),
        least=_floats(part["least"]),
    )


def _floats(column: pl.Series) -> Floats:
    return column.cast(pl.Float64).fill_null(np.nan).to_numpy()


def draw_line(ax: Axes, line: Series, *, log: bool, marks: int = 0) -> None:
    """Mean line with its band, in the colour of its key; marked points where there are few.

    On a longer line only lone points are marked, and as many `marks` along it as asked for.
    """
    y = line.shown(log)
    low, high = line.band(log)
    alone = ~np.isnan(y) & np.isnan(np.r_[np.nan, y[:-1]]) & np.isnan(np.r_[y[1:], np.nan])
    if marks:
        alone[np.linspace(0, y.size - 1, marks).round().astype(int)] = True
    every = np.arange(y.size) if y.size <= 60 else np.flatnonzero(alone)
    style: dict[str, Any] = {"color": COLOR[line.key], "linestyle": LINE[line.key]}
    marker = MARKER[line.key] if every.size else ""
    ax.plot(line.x, y, label=line.label, marker=marker, markevery=every.tolist(), **style)
    if not np.isnan(low).all():
        ax.fill_between(line.x, low, high, color=COLOR[line.key], alpha=0.2, linewidth=0)


def draw_bars(ax: Axes, bars: Series, floor: float) -> None:
    """Bars on a log axis from its floor to the mean, whiskers for n ≥ 2, a cross where there is no value."""
    y = bars.shown(log=True)
    there = ~np.isnan(y)
    color = COLOR[bars.key]
    ax.bar(bars.x[there], y[there] - floor, bottom=floor, width=0.72, color=color)
    low, high = bars.band(log=True)
    spread = ~np.isnan(low)
    if spread.any():
        whiskers = np.array([y - low, high - y])[:, spread]
        ax.errorbar(
            bars.x[spread], y[spread], whiskers, fmt="none", ecolor="#222222", elinewidth=0.7, capsize=1.2
        )
    undefined = np.isnan(bars.mean)
    if undefined.any():
        ax.plot(
            bars.x[undefined],
            np.full(undefined.sum(), 0.035),
            "x",
            color=FAINT,
            transform=ax.get_xaxis_transform(),
            markersize=4,
            label="undefined",
        )


def draw_theory(ax: Axes, x: Floats, theory: Floats) -> None:
    """The line random weights give, where it is known."""
    if theory.size:
        ax.plot(x, theory, color="#222222", linewidth=1, linestyle=(0, (1, 1)), label="theory at init")


def gap_notes(line: Series, *, log: bool, unit: str = "layers") -> list[str]:
    """What of a line is not drawn, and why."""
    notes = []
    undefined, unshown = int(np.isnan(line.mean).sum()), line.mean[line.mean <= 0]
    if undefined:
        notes.append(f"{line.label}: {undefined} of {line.mean.size} {unit} undefined, left as gaps.")
    if log and unshown.size:
        what = "exactly 0" if not unshown.any() else "not above 0"
        verb = "is" if unshown.size == 1 else "are"
        notes.append(
            f"{line.label}: {unshown.size} of {line.mean.size} {unit} {verb} {what} "
            "and cannot be shown on a log axis."
        )
    if log and line.cut():
        notes.append(
            f"{line.label}: where mean − s.d. is not above 0, the spread is drawn down to the smallest seed."
        )
    return notes


def layer_axis(ax: Axes, depth: int, first: int = 1, zero: str = "input") -> None:
    """Ticks at the first, the last and round layers between; `zero` is what layer 0 is called."""
    stride = max(5 * round(depth / 20), 1) if depth > 10 else 1
    inner = [at for at in range(stride, depth, stride) if at > first and depth - at >= 0.4 * stride]
    ticks = sorted({first, *inner, depth})
    ax.set_xticks(ticks, [zero if at == 0 else str(at) for at in ticks])
    ax.set_xlabel("layer")
