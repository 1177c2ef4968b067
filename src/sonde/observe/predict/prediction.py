"""The result of `sonde.predict`, as text, as a table and as a figure."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.core import html_parts
from sonde.core.formatting import listed, number
from sonde.observe.predict.tape import Spread
from sonde.show.figures.style import BLUE, DOUBLE, FAINT, VERMILLION, footnotes, house_style, new_figure

LOWEST, HIGHEST = 1e-3, 1e3
"""A signal relative to the input, or a gradient relative to the output's, outside of this does not train."""

_QUANTILE = 1.645  # of a Gaussian: 5 and 95 per cent
_TICKS = 24


@dataclass(frozen=True)
class Level:
    """A root mean square: its mean over draws of the weights, and the range that holds nine draws in ten."""

    expected: float
    low: float
    high: float

    @staticmethod
    def of(square: float, spread: Spread) -> "Level":
        """From the mean square over draws and the variance v of its logarithm: its median is lower by v/2."""
        variance = float(spread @ spread)
        rms = math.sqrt(square) if square >= 0 else math.nan
        middle, width = rms * math.exp(-variance / 4), _QUANTILE * math.sqrt(variance) / 2
        return Level(rms * math.exp(-variance / 8), middle * math.exp(-width), middle * math.exp(width))


@dataclass(frozen=True, kw_only=True)
class PredictedModule:
    """What a module's output, and the gradient at it, are expected to be; None where that is undefined."""

    name: str
    type: str
    shape: tuple[int, ...]
    signal: Level | None = None
    gradient: Level | None = None
    correlation: float | None = None  # E[h h'] of two samples at the same entry, relative to E[h²]
    undefined: str | None = None
    is_leaf: bool = True


@dataclass(frozen=True)
class Remedy:
    """One scale that keeps signal and gradient between blocks: parameters, the factor, what remains."""

    parameters: tuple[str, ...]
    pattern: str
    factor: float
    worst: float  # the largest factor between a block's signal, or gradient, and the first's

    def __str__(self) -> str:
        many = f" ({len(self.parameters)} parameters)" if len(self.parameters) > 1 else ""
        return (
            f"multiply {self.pattern}{many} by {number(self.factor, 3)}: "
            f"signal and gradient then differ by at most ×{number(self.worst, 2)} between blocks"
        )


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Signal and gradient at every module, in order of execution, over draws of the weights.

    The signal is a root mean square; the gradient is relative to the gradient at the model's output.  Prints as a
    table by depth with what it means; a notebook shows the figure as well.
    """

    model: str
    input_rms: float
    modules: list[PredictedModule]
    blocks: list[str]  # modules that follow each other on the main path
    notes: list[str] = field(default_factory=list)
    remedy: Remedy | None = None
    best_scale: Remedy | None = None  # where no scale keeps them within a factor 2: the one that comes nearest

    def __getitem__(self, name: str) -> PredictedModule:
        """A module by its name."""
        for module in self.modules:
            if module.name == name:
                return module
        raise KeyError(f"{name!r}: the modules are {listed([module.name for module in self.modules], 12)}")

    @property
    def table(self) -> pl.DataFrame:
        """A line for each module; null where undefined."""
        return pl.DataFrame([_line(module) for module in self.modules], schema=_SCHEMA)

    @property
    def undefined(self) -> dict[str, str]:
        """Module → reason, for modules whose signal is not known."""
        return {module.name: module.undefined for module in self.modules if module.undefined is not None}

    def leaves(self, direction: str) -> PredictedModule | None:
        """The first module, in the direction of travel, whose `signal` or `gradient` lies outside 1e-3 to 1e3."""
        order = self.modules if direction == "signal" else self.modules[::-1]
        scale = self.input_rms if direction == "signal" else 1.0
        for module in order:
            level: Level | None = getattr(module, direction)
            if level is not None and module.is_leaf and not LOWEST <= level.expected / scale <= HIGHEST:
                return module
        return None

    def per_block(self, direction: str) -> float | None:
        """The factor from one block to the next: forward for `signal`, backward for `gradient`."""
        values = [getattr(self[name], direction) for name in self.blocks]
        known = [value.expected for value in values if value is not None and value.expected > 0]
        if len(known) < 3:
            return None
        ends = (known[0], known[-1]) if direction == "signal" else (known[-1], known[0])
        return float((ends[1] / ends[0]) ** (1 / (len(known) - 1)))

    def words(self) -> list[str]:
        """What the numbers mean, in sentences."""
        said = [*self._direction("signal"), *self._direction("gradient")]
        if self.remedy is not None:
            said.append(f"Remedy: {self.remedy}.")
        elif self.best_scale is not None:
            said.append(
                "No single scale of the weights keeps signal and gradient within a factor 2; "
                f"the best is to {self.best_scale}."
            )
        if self.undefined:
            (name, why), many = next(iter(self.undefined.items())), len(self.undefined)
            said.append(f"Undefined from {name} on, for {many} module{'s' * (many > 1)}: {why}.")
        return [*said, *self.notes]

    def _direction(self, direction: str) -> list[str]:
        factor, out = self.per_block(direction), self.leaves(direction)
        ends = [getattr(module, direction) for module in self.modules if getattr(module, direction) is not None]
        if not ends:
            return []
        what = "The signal" if direction == "signal" else "The gradient"
        rate = "" if factor is None else f" changes by ×{number(factor, 3)} from block to block"
        if out is None:
            where = "where it is defined" if len(ends) < len(self.modules) else "everywhere"
            return [f"{what}{rate or ' arrives'}; it stays within {LOWEST:g} to {HIGHEST:g} {where}."]
        level = getattr(out, direction)
        of = "of the input" if direction == "signal" else "of the output's"
        scale = self.input_rms if direction == "signal" else 1.0
        verb = "vanishes" if level.expected / scale < LOWEST else "explodes"
        joined = f"{rate} and {verb}" if rate else f" {verb}"
        return [f"{what}{joined}: at {out.name} ({out.type}) it is {number(level.expected / scale, 2)} {of}."]

    def shown(self) -> list[list[str]]:
        """Headings and lines of the table as text."""
        lines = [["module", "type", "signal", "5–95 %", "gradient", "5–95 %", "corr."]]
        for module in self.modules:
            correlation = "–" if module.correlation is None else number(module.correlation, 2)
            levels = [*_cells(module.signal), *_cells(module.gradient)]
            lines.append([module.name, module.type, *levels, correlation])
        return lines

    @property
    def title(self) -> str:
        """The model, and what is predicted."""
        return f"{self.model} at initialisation, predicted from its weights' distributions"

    def __str__(self) -> str:
        lines = self.shown()
        widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
        table = ["  ".join(cell.ljust(n) for cell, n in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([self.title, "", *table, "", *self.words()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heading, *lines = self.shown()
        columns = {f"{name}{' ' * place}": "left" if place < 2 else "right" for place, name in enumerate(heading)}
        buffer = io.BytesIO()
        self.figure().savefig(buffer, format="png", dpi=150)
        return (
            html_parts.listing(self.words())
            + html_parts.picture(buffer.getvalue(), "predicted signal and gradient by depth")
            + html_parts.table(columns, lines)
        )

    def figure(self) -> Figure:
        """Signal, gradient and correlation of samples by depth, with the range of nine draws in ten."""
        leaves = [module for module in self.modules if module.is_leaf and module.signal is not None]
        with house_style():
            figure = new_figure(DOUBLE, 5.4, f"{self.model} at initialisation, predicted")
            axes = figure.subplots(3, 1, sharex=True)
            _draw_levels(axes[0], [module.signal for module in leaves], "signal, RMS", BLUE)
            _draw_levels(axes[1], [module.gradient for module in leaves], "gradient ÷ output's", VERMILLION)
            values = [math.nan if module.correlation is None else module.correlation for module in leaves]
            axes[2].plot(range(len(leaves)), values, color=FAINT, marker="o")
            axes[2].set_ylabel("correlation of samples")
            axes[2].set_ylim(-0.05, 1.05)
            every = -(-len(leaves) // _TICKS) or 1
            places = list(range(0, len(leaves), every))
            axes[2].set_xticks(places, [leaves[place].name[-28:] for place in places], rotation=45, ha="right")
            footnotes(figure, ["Band: 5 to 95 % of draws of the weights."])
        return figure


_SCHEMA: dict[str, Any] = {
    **dict.fromkeys(("module", "type", "shape"), pl.String),
    **dict.fromkeys(("signal", "signal_low", "signal_high", "gradient", "gradient_low", "gradient_high"), pl.Float64),
    "correlation": pl.Float64,
    "undefined": pl.String,
}


def _line(module: PredictedModule) -> dict[str, Any]:
    line: dict[str, Any] = {"module": module.name, "type": module.type, "shape": "×".join(map(str, module.shape))}
    for direction in ("signal", "gradient"):
        level: Level | None = getattr(module, direction)
        known = (None,) * 3 if level is None else (level.expected, level.low, level.high)
        line |= dict(zip((direction, f"{direction}_low", f"{direction}_high"), known, strict=True))
    return line | {"correlation": module.correlation, "undefined": module.undefined}


def _cells(level: Level | None) -> list[str]:
    if level is None:
        return ["–", ""]
    return [number(level.expected, 3), f"{number(level.low)}–{number(level.high)}"]


def _draw_levels(ax: Axes, levels: Sequence[Level | None], label: str, colour: str) -> None:
    places = [place for place, level in enumerate(levels) if level is not None and level.expected > 0]
    known = [level for level in levels if level is not None and level.expected > 0]
    ax.set_ylabel(label)
    if not known:
        ax.text(0.5, 0.5, "undefined", transform=ax.transAxes, ha="center", color=FAINT)
        return
    ax.plot(places, [level.expected for level in known], color=colour, marker="o")
    low, high = [level.low for level in known], [level.high for level in known]
    ax.fill_between(places, low, high, color=colour, alpha=0.2, lw=0)
    ax.set_yscale("log")
