"""A run as the audit sees it: what it was, and its readings by metric, epoch and layer."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import polars as pl

from sonde.store.load import Run

NUDGE = "nudge[0.01]"
CONTROLLED = ("credit_cosine", "rho", NUDGE)
"""Metrics that are measured beside a ceiling, `…/bp`, and a null, `…/null`."""

NEEDED = (
    "growth",
    "grad_norm",
    "test_acc",
    "train_acc",
    *(f"{metric}{control}" for metric in CONTROLLED for control in ("", "/bp", "/null")),
)


@dataclass(frozen=True)
class Cell:
    """One reading: NaN where undefined, and why."""

    value: float
    reason: str | None = None
    samples: int = 0

    @property
    def defined(self) -> bool:
        return self.reason is None


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One run."""

    run: str
    seed: int
    rule: str
    depth: int
    width: int
    epochs: int
    directions: int  # along which ρ is measured
    cells: dict[tuple[str, int, int | None], Cell] = field(repr=False)

    def at(self, metric: str, epoch: int, layer: int | None = None) -> Cell:
        """The reading, or an undefined one that says it was not taken."""
        found = self.cells.get((metric, epoch, layer))
        return found or Cell(math.nan, f"{metric} was not measured at epoch {epoch}")

    def epochs_of(self, metric: str, layers: Iterable[int | None] = (None,)) -> list[int]:
        """The epochs at which it was measured at any of the layers."""
        wanted = set(layers)
        return sorted({epoch for name, epoch, layer in self.cells if name == metric and layer in wanted})

    @property
    def layers(self) -> range:
        """1 … L, the states that leave a block."""
        return range(1, self.depth + 1)

    @property
    def deep(self) -> range:
        """1 … L−1: neither the embedding's state nor the one that some rules give the exact gradient."""
        return range(1, self.depth)

    def mean(self, metric: str, epoch: int, layers: Sequence[int]) -> Cell:
        """Over the layers; undefined where one of them is, for an average covers the layers it names."""
        if not layers:
            return Cell(math.nan, "there is no layer between the first and the last state")
        cells = {layer: self.at(metric, epoch, layer) for layer in layers}
        for layer, cell in cells.items():
            if cell.reason is not None:
                return Cell(math.nan, f"layer {layer}: {cell.reason}")
        value = math.fsum(cell.value / len(layers) for cell in cells.values())
        return Cell(value, samples=min(cell.samples for cell in cells.values()))


def subjects(rows: pl.DataFrame, runs: Sequence[Run]) -> list[Subject]:
    """The runs with their readings."""
    cells: dict[str, dict[tuple[str, int, int | None], Cell]] = {run.id: {} for run in runs}
    needed = rows.filter(pl.col("metric").is_in(NEEDED) & pl.col("run").is_in(list(cells)))
    columns = ("run", "metric", "epoch", "layer", "value", "defined", "reason", "samples")
    for run, metric, epoch, layer, value, defined, reason, samples in needed.select(columns).iter_rows():
        cells[run][metric, epoch, layer] = _cell(value, defined, reason, samples)
    return [
        Subject(
            run=run.id,
            seed=run.config["seed"],
            rule=run.config["rule"]["name"],
            depth=run.about["depth"],
            width=run.about["width"],
            epochs=run.config["epochs"],
            directions=run.config["probes"].get("directions", 32),
            cells=cells[run.id],
        )
        for run in runs
    ]


def _cell(value: float | None, defined: bool | None, reason: str | None, samples: int | None) -> Cell:
    if defined and value is not None and math.isfinite(value):
        return Cell(value, samples=samples or 0)
    return Cell(math.nan, reason or "undefined, no reason was recorded", samples or 0)
