"""What a check found, as text, as a table and as a picture."""

import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from sonde.analysis.diagnosis.finding import Findings
from sonde.analysis.diagnosis.run_evidence import RunEvidence, describe_nonfinite
from sonde.core import html_parts
from sonde.core.formatting import listed, number

NAMED = 6  # modules or parameters that a sentence names
COLUMNS = {
    "signal": "out_rms",
    "gradient": "grad_rms",
    "dead": "dead_share",
    "saturated": "saturated_share",
    "step": "stream_step",
}
"""Headings of the table, and the metrics under them."""


@dataclass(frozen=True)
class Band:
    """How much a metric differs between fresh initialisations, by module."""

    inits: int
    rows: pl.DataFrame  # module, metric, low, middle, high, n

    @staticmethod
    def over(frames: Sequence[pl.DataFrame]) -> "Band":
        found = pl.concat(frames).filter(pl.col("defined") & pl.col("metric").is_in(["out_rms", "grad_rms"]))
        value = pl.col("value")
        by_module = found.group_by("module", "metric", maintain_order=True).agg(
            low=value.min(), middle=value.median(), high=value.max(), n=pl.len()
        )
        return Band(len(frames), by_module)

    def of(self, module: str, metric: str) -> tuple[float, float] | None:
        found = self.rows.filter((pl.col("module") == module) & (pl.col("metric") == metric))
        return None if found.is_empty() else (float(found["low"][0]), float(found["high"][0]))


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One look at a model.  Prints as a table by depth; a notebook shows the picture as well."""

    model: str
    rows: pl.DataFrame
    facts: dict[str, Any]
    loss: str  # in words
    notes: list[str] = field(default_factory=list)
    band: Band | None = None
    findings: Findings = field(default_factory=Findings)

    @property
    def modules(self) -> list[str]:
        """Those that were called, in order of execution."""
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
            line = {
                "module": name,
                "type": fact.get("type"),
                "shape": "×".join(map(str, fact.get("shape", []))),
            }
            lines.append(line | {heading: values.get((name, metric)) for heading, metric in COLUMNS.items()})
        schema = {"module": pl.String, "type": pl.String, "shape": pl.String}
        return pl.DataFrame(lines, schema=schema | dict.fromkeys(COLUMNS, pl.Float64))

    @property
    def loss_value(self) -> float | None:
        """The loss of the batch; None where there is none."""
        found = self.rows.filter(pl.col("metric") == "loss")
        return None if found.is_empty() else float(found["value"][0])

    @property
    def remarks(self) -> list[str]:
        """What is plainly wrong or worth knowing, in words."""
        return [*self.notes, *_not_finite(self.rows), *_silent(self.rows), *_without_gradient(self)]

    def figure(self) -> Figure:
        """Signal and gradient by depth, with the band over initialisations where there is one."""
        from sonde.observe.depth_figure import draw_profile

        return draw_profile(self)

    @property
    def title(self) -> str:
        """Which model, when, and its loss."""
        value = self.loss_value
        loss = self.loss if value is None else f"{self.loss}, {number(value, 4)}"
        return f"{self.model} at initialisation; loss: {loss}"

    def words(self) -> list[str]:
        """What stands below the table."""
        fine = "nothing is zero or not finite"
        if self.loss_value is not None:
            fine = f"every parameter has a gradient; {fine}"
        said = [line for finding in self.findings for line in str(finding).splitlines()]
        said += [f"• {remark}" for remark in self.remarks or [fine]]
        if self.band is None:
            return said
        return [*said, f"In brackets: smallest and largest of {self.band.inits} fresh initialisations."]

    def __str__(self) -> str:
        return "\n".join([self.title, "", *_text(self.shown()), "", *self.words()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heading, *lines = self.shown()
        columns = {name: "left" if place < 3 else "right" for place, name in enumerate(heading)}
        buffer = io.BytesIO()
        self.figure().savefig(buffer, format="png", dpi=150)
        return (
            f"<p><strong>{html.escape(self.title)}</strong></p>"
            + html_parts.listing(line.removeprefix("• ") for line in self.words())
            + html_parts.picture(buffer.getvalue(), "signal and gradient by depth")
            + html_parts.table(columns, lines)
        )

    def shown(self) -> list[list[str]]:
        """Headings and lines as text; columns that say nothing are left out."""
        table = self.table
        kept = [heading for heading in COLUMNS if table[heading].is_not_null().any()]
        lines = [["module", "type", "shape", *kept]]
        for line in table.iter_rows(named=True):
            cells = [self._cell(line["module"], heading, line[heading]) for heading in kept]
            lines.append([line["module"], line["type"] or "", line["shape"], *cells])
        return lines

    def _cell(self, module: str, heading: str, value: float | None) -> str:
        if value is None:
            return "–"
        if heading in ("dead", "saturated"):
            return f"{100 * value:.0f} %"
        band = None if self.band is None else self.band.of(module, COLUMNS[heading])
        text = number(value, 3)
        return text if band is None else f"{text} ({number(band[0])}–{number(band[1])})"


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
            remarks.append(f"the {what} is exactly zero at {listed(zero['module'].to_list(), NAMED, last=', ')}")
    return remarks


def _without_gradient(checked: Checked) -> list[str]:
    remarks = []
    known = checked.facts.get("parameters", [])
    if checked.loss_value is not None and math.isfinite(checked.loss_value):
        without = RunEvidence(rows=checked.rows, facts=checked.facts, steps=0).without_gradient
        wanting = [p["name"] for p in known if p["requires_grad"] and p["name"] in without]
        if wanting:
            remarks.append(f"no gradient reaches {listed(wanting, NAMED, last=', ')}")
    frozen = [p["name"] for p in known if not p["requires_grad"]]
    if frozen:
        remarks.append(
            f"{len(frozen)} of {len(known)} parameters ask for no gradient: {listed(frozen, NAMED, last=', ')}"
        )
    unseen = [module for module in checked.facts.get("modules", []) if not module["calls"]]
    for reason in dict.fromkeys(module["reason"] for module in unseen):
        names = [module["name"] for module in unseen if module["reason"] == reason]
        remarks.append(f"{reason}: {listed(names, NAMED, last=', ')}")
    if checked.facts.get("training") is False:
        remarks.append("the model is in eval mode")
    return remarks
