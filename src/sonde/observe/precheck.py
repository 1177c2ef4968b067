"""The result of `sonde.check`, as text, as a table and as a figure."""

import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sonde.analysis.diagnosis.finding import Findings
from sonde.analysis.diagnosis.flow_symptoms import DEAD_SHARE, SATURATED_SHARE
from sonde.analysis.diagnosis.run_evidence import RunEvidence
from sonde.analysis.diagnosis.run_record import describe_nonfinite
from sonde.core import html_parts
from sonde.core.formatting import listed, number
from sonde.metrics import WATCHED
from sonde.show.figures.style import BLUE, DOUBLE, FAINT, VERMILLION, footnotes, house_style, new_figure

_NAMED = 6  # modules or parameters that a sentence names
_OFF_CHANCE = 1.5  # first loss relative to that of a constant answer
_TICKS = 24  # modules that are named on an axis
_COLUMNS = {
    "signal": "out_rms",
    "gradient": "grad_rms",
    "dead": "dead_share",
    "saturated": "saturated_share",
    "step": "stream_step",
}
"""Headings of the table, and the metrics under them."""

_PREDICTED = ("signal", "gradient")
MODEL = "(model)"
_PANELS = (("out_rms", BLUE), ("grad_rms", VERMILLION))


@dataclass(frozen=True)
class Band:
    """How much a metric differs between fresh initialisations, by module."""

    inits: int
    rows: pl.DataFrame  # module, metric, low, middle, high, n

    @staticmethod
    def over(frames: Sequence[pl.DataFrame]) -> "Band":
        """The band over the rows of several initialisations."""
        found = pl.concat(frames).filter(pl.col("defined") & pl.col("metric").is_in(["out_rms", "grad_rms"]))
        value = pl.col("value")
        by_module = found.group_by("module", "metric", maintain_order=True).agg(
            low=value.min(), middle=value.median(), high=value.max(), n=pl.len()
        )
        return Band(len(frames), by_module)

    def of(self, module: str, metric: str) -> tuple[float, float] | None:
        """Lowest and highest value of a module's metric; None where it was not measured."""
        found = self.rows.filter((pl.col("module") == module) & (pl.col("metric") == metric))
        return None if found.is_empty() else (float(found["low"][0]), float(found["high"][0]))


@dataclass(frozen=True, kw_only=True)
class Precheck:
    """A model at its initialisation.  Prints as a table by depth; a notebook shows the figure as well."""

    model: str
    rows: pl.DataFrame
    facts: dict[str, Any]
    loss: str  # in words
    notes: list[str] = field(default_factory=list)
    band: Band | None = None
    findings: Findings = field(default_factory=Findings)
    expected: pl.DataFrame | None = None  # module, direction, expected, low, high, is_inside: by `sonde.predict`
    predicted: str = ""  # how many values lie in the predicted range

    @property
    def modules(self) -> list[str]:
        """The modules that were called, in order of execution."""
        there = self.rows.filter(pl.col("layer").is_not_null()).sort("layer")
        return there["module"].unique(maintain_order=True).to_list()

    @property
    def table(self) -> pl.DataFrame:
        """A line for each module, in order of execution; null where a number does not apply or is undefined."""
        known = self.rows.filter(pl.col("defined") & pl.col("layer").is_not_null())
        facts = {module["name"]: module for module in self.facts.get("modules", [])}
        values = {(m, metric): v for m, metric, v in known.select("module", "metric", "value").iter_rows()}
        lines = []
        for name in self.modules:
            fact = facts.get(name.split("#")[0], {})
            line = {"module": name, "type": fact.get("type"), "shape": "×".join(map(str, fact.get("shape", [])))}
            lines.append(line | {heading: values.get((name, metric)) for heading, metric in _COLUMNS.items()})
        schema = {"module": pl.String, "type": pl.String, "shape": pl.String}
        table = pl.DataFrame(lines, schema=schema | dict.fromkeys(_COLUMNS, pl.Float64))
        if self.expected is None:
            return table
        for direction in _PREDICTED:
            part = self.expected.filter(pl.col("direction") == direction)
            named = {end: f"{direction}_{end}" for end in ("expected", "low", "high", "is_inside")}
            part = part.select("module", *named).rename(named)
            table = table.join(part, on="module", how="left", maintain_order="left")
        return table

    @property
    def loss_value(self) -> float | None:
        """The loss of the batch; None where there is none."""
        found = self.rows.filter(pl.col("metric") == "loss")
        return None if found.is_empty() else float(found["value"][0])

    @property
    def remarks(self) -> list[str]:
        """Remarks about values that are zero, missing or not finite, as sentences."""
        known = [*self.notes, *_not_finite(self.rows), *_silent(self.rows), *_without_gradient(self)]
        return [*known, *_off_chance(self), *_at_bounds(self.rows)]

    def figure(self) -> Figure:
        """Signal and gradient by depth, with the band over initialisations where there is one."""
        return draw_profile(self)

    @property
    def title(self) -> str:
        """The model and its loss."""
        value = self.loss_value
        loss = self.loss if value is None else f"{self.loss}, {number(value, 4)}"
        return f"{self.model} at initialisation; loss: {loss}"

    def words(self) -> list[str]:
        """The lines below the table: findings and remarks."""
        fine = "nothing is zero or not finite"
        if self.loss_value is not None:
            fine = f"every parameter has a gradient; {fine}"
        said = [line for finding in self.findings for line in str(finding).splitlines()]
        said += [f"• {remark}" for remark in (*(self.remarks or [fine]), *([self.predicted] if self.predicted else []))]
        if self.band is None:
            return said
        return [*said, f"In brackets: smallest and largest of {self.band.inits} fresh initialisations."]

    def __str__(self) -> str:
        return "\n".join([self.title, "", *_text(self.shown()), "", *self.words()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heading, *lines = self.shown()
        columns = {f"{name}{' ' * place}": "left" if place < 3 else "right" for place, name in enumerate(heading)}
        buffer = io.BytesIO()
        self.figure().savefig(buffer, format="png", dpi=150)
        return (
            f"<p><strong>{html.escape(self.title)}</strong></p>"
            + html_parts.listing(line.removeprefix("• ") for line in self.words())
            + html_parts.picture(buffer.getvalue(), "signal and gradient by depth")
            + html_parts.table(columns, lines)
        )

    def shown(self) -> list[list[str]]:
        """Headings and lines of the table as text, without empty columns."""
        table = self.table
        kept = [heading for heading in _COLUMNS if table[heading].is_not_null().any()]
        beside = {heading for heading in kept if f"{heading}_low" in table.columns}
        headings = [name for heading in kept for name in (heading, "predicted")[: 1 + (heading in beside)]]
        lines = [["module", "type", "shape", *headings]]
        for line in table.iter_rows(named=True):
            cells = []
            for heading in kept:
                cells.append(self._cell(line["module"], heading, line[heading]))
                if heading in beside:
                    cells.append(_range(*(line[f"{heading}_{end}"] for end in ("low", "high", "is_inside"))))
            lines.append([line["module"], line["type"] or "", line["shape"], *cells])
        return lines

    def _cell(self, module: str, heading: str, value: float | None) -> str:
        if value is None:
            return "–"
        if heading in ("dead", "saturated"):
            return f"{100 * value:.0f} %"
        band = None if self.band is None else self.band.of(module, _COLUMNS[heading])
        text = number(value, 3)
        return text if band is None else f"{text} ({number(band[0])}–{number(band[1])})"


def _range(low: float | None, high: float | None, is_inside: bool | None) -> str:
    """The predicted range, with a mark where the measured value lies outside."""
    if low is None or high is None:
        return "–"
    return f"{number(low, 3)}–{number(high, 3)}{'' if is_inside else ' ✗'}"


def _text(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    return [
        "  ".join(
            cell.ljust(width) if place < 3 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def _not_finite(rows: pl.DataFrame) -> list[str]:
    found = rows.filter(pl.col("metric") == "nonfinite")
    if found.is_empty():
        return []
    module, value, reason = (found[column][0] for column in ("module", "value", "reason"))
    return [describe_nonfinite(module, value, reason)]


def _silent(rows: pl.DataFrame) -> list[str]:
    remarks = []
    for metric, what in (("out_rms", "output"), ("grad_rms", "gradient that comes back")):
        zero = rows.filter((pl.col("metric") == metric) & pl.col("defined") & (pl.col("value") == 0))
        if not zero.is_empty():
            remarks.append(f"the {what} is exactly zero at {listed(zero['module'].to_list(), _NAMED, last=', ')}")
    return remarks


def _off_chance(precheck: Precheck) -> list[str]:
    """The first loss beside that of equal shares for all classes, where they differ."""
    evidence = RunEvidence(rows=precheck.rows, facts=precheck.facts, steps=0)
    chance, value = evidence.loss_of_chance, precheck.loss_value
    if chance is None or value is None or not math.isfinite(value) or value <= _OFF_CHANCE * chance:
        return []
    return [
        f"the first loss is {number(value, 3)}, and a constant answer has {number(chance, 3)}: outputs are too large "
        "at the start, so scale down the last layer"
    ]


def _at_bounds(rows: pl.DataFrame) -> list[str]:
    """Modules that are mostly saturated or dead."""
    remarks = []
    for metric, most, what in (
        ("saturated_share", SATURATED_SHARE, "of the outputs lie at a bound"),
        ("dead_share", DEAD_SHARE, "of the units are off"),
    ):
        known = rows.filter((pl.col("metric") == metric) & pl.col("defined") & (pl.col("value") >= most))
        if known.is_empty():
            continue
        values = known["value"].to_list()
        low, high = f"{100 * min(values):.0f}", f"{100 * max(values):.0f}"
        share = low if low == high else f"{low}–{high}"
        remarks.append(f"{share} % {what} in {listed(known['module'].to_list(), _NAMED, last=', ')}")
    return remarks


def _without_gradient(precheck: Precheck) -> list[str]:
    remarks = []
    known = precheck.facts.get("parameters", [])
    if precheck.loss_value is not None and math.isfinite(precheck.loss_value):
        without = RunEvidence(rows=precheck.rows, facts=precheck.facts, steps=0).without_gradient
        wanting = [p["name"] for p in known if p["requires_grad"] and p["name"] in without]
        if wanting:
            remarks.append(f"no gradient reaches {listed(wanting, _NAMED, last=', ')}")
    frozen = [p["name"] for p in known if not p["requires_grad"]]
    if frozen:
        remarks.append(
            f"{len(frozen)} of {len(known)} parameters ask for no gradient: {listed(frozen, _NAMED, last=', ')}"
        )
    unseen = [module for module in precheck.facts.get("modules", []) if not module["calls"]]
    for reason in dict.fromkeys(module["reason"] for module in unseen):
        names = [module["name"] for module in unseen if module["reason"] == reason]
        remarks.append(f"{reason}: {listed(names, _NAMED, last=', ')}")
    if precheck.facts.get("training") is False:
        remarks.append("the model is in eval mode")
    return remarks


def _leaf_modules(precheck: Precheck) -> list[str]:
    """Modules in order of execution, without containers of others."""
    names = [name for name in precheck.modules if name != MODEL]
    return [name for name in names if not any(other.startswith(f"{name}.") for other in names)] or precheck.modules


def profile_rows(precheck: Precheck, metric: str) -> pl.DataFrame:
    """place, module, value, low, high; null where undefined."""
    names = _leaf_modules(precheck)
    found = precheck.rows.filter((pl.col("metric") == metric) & pl.col("defined")).select("module", "value")
    base = pl.DataFrame({"place": range(len(names)), "module": names}, schema={"place": pl.Int64, "module": pl.String})
    line = base.join(found, on="module", how="left", maintain_order="left")
    if precheck.band is None:
        return line.with_columns(low=pl.lit(None, pl.Float64), high=pl.lit(None, pl.Float64))
    band = precheck.band.rows.filter(pl.col("metric") == metric).select("module", "low", "high")
    return line.join(band, on="module", how="left", maintain_order="left")


def draw_profile(precheck: Precheck) -> Figure:
    """Two panels, one below the other, over the modules in order of execution."""
    with house_style():
        figure = new_figure(DOUBLE, 4.2, f"{precheck.model} at initialisation")
        upper, lower = figure.subplots(2, 1, sharex=True)
        for ax, (metric, colour) in zip((upper, lower), _PANELS, strict=True):
            _draw_panel(ax, profile_rows(precheck, metric), WATCHED[metric].label, colour)
        _name_ticks(lower, _leaf_modules(precheck))
        notes = [f"Loss: {precheck.loss}."]
        if precheck.band is not None:
            notes.append(f"Band: smallest to largest of {precheck.band.inits} fresh initialisations.")
        footnotes(figure, notes)
    return figure


def _draw_panel(ax: Axes, line: pl.DataFrame, label: str, colour: str) -> None:
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
            band["place"].to_list(), band["low"].to_list(), band["high"].to_list(), color=colour, alpha=0.2, lw=0
        )
    ax.set_yscale("log")


def _name_ticks(ax: Axes, names: list[str]) -> None:
    every = -(-len(names) // _TICKS)
    places = list(range(0, len(names), every))
    ax.set_xticks(places, [_short(names[place]) for place in places], rotation=45, ha="right")


def _short(name: str) -> str:
    return name if len(name) <= 28 else f"…{name[-27:]}"
