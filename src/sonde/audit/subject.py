"""A run as the audit sees it: what it was, and its readings by metric, epoch and layer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import polars as pl

from sonde.audit.layout import Layout
from sonde.store.load import Run

NUDGE = "nudge[0.01]"
CONTROLLED = ("credit_cosine", "rho", NUDGE)
"""Metrics that are measured beside a ceiling, `…/bp`, and a null, `…/null`; two of them with its spread over draws."""

WHOLE = -1
"""Stands for the layer of a measurement of the whole network."""

NEEDED = (
    "growth",
    "grad_norm",
    "grad_per_error",
    "test_acc",
    "train_acc",
    *(f"{metric}{control}" for metric in CONTROLLED for control in ("", "/bp", "/null", "/null_std")),
)


class Cell(NamedTuple):
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
    epochs: int
    layout: Layout = field(repr=False)
    values: Sequence[float] = field(repr=False)  # in the order of the layout; NaN where undefined
    reasons: Sequence[str | None] = field(repr=False)
    samples: Sequence[int] = field(repr=False)

    def at(self, metric: str, epoch: int, layer: int | None = None) -> Cell:
        """The reading, or an undefined one that says it was not taken."""
        place = self.layout.places.get((metric, epoch, layer))
        if place is None:
            return Cell(math.nan, f"{metric} was not measured at epoch {epoch}")
        return Cell(self.values[place], self.reasons[place], self.samples[place])

    def across(self, metric: str, epoch: int, layers: Sequence[int]) -> list[float]:
        """The values of one epoch, layer by layer; NaN where undefined, and `at` knows why."""
        values = self.values
        return [
            math.nan if place is None else values[place] for place in self.layout.row(metric, epoch, layers)
        ]

    def epochs_of(self, metric: str, layers: Sequence[int | None] = (None,)) -> list[int]:
        """The epochs at which it was measured at any of the layers."""
        return self.layout.epochs(metric, layers)

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
        values = self.across(metric, epoch, layers)
        for layer, value in zip(layers, values, strict=True):
            if math.isnan(value):
                return Cell(math.nan, f"layer {layer}: {self.at(metric, epoch, layer).reason}")
        return Cell(math.fsum([value / len(layers) for value in values]))


def subjects(rows: pl.DataFrame, runs: Sequence[Run]) -> list[Subject]:
    """The runs with their readings."""
    needed = _needed(rows)
    stretches = needed["run"].rle().struct.unnest()
    ends = stretches["len"].cum_sum()
    spans = dict(zip(stretches["value"], zip(ends - stretches["len"], ends, strict=True), strict=True))
    layouts = _Layouts(needed)
    values, reasons, samples = (needed[name].to_list() for name in ("value", "reason", "samples"))
    found = []
    for run in runs:
        span = slice(*spans.get(run.id, (0, 0)))
        found.append(
            Subject(
                run=run.id,
                seed=run.config["seed"],
                rule=run.config["rule"]["name"],
                depth=run.about["depth"],
                epochs=run.config["epochs"],
                layout=layouts.of(span),
                values=values[span],
                reasons=reasons[span],
                samples=samples[span],
            )
        )
    return found


def _needed(rows: pl.DataFrame) -> pl.DataFrame:
    """What the audit reads of the rows, those of a run together."""
    defined = (pl.col("defined") & pl.col("value").is_finite()).fill_null(False)
    reason = pl.when(pl.col("reason") == "").then(None).otherwise("reason")
    needed = (
        rows.lazy()
        .filter(pl.col("metric").is_in(NEEDED))
        .select(
            "run",
            "epoch",
            pl.col("metric").cast(pl.Enum(NEEDED)),
            pl.col("layer").fill_null(WHOLE),
            pl.when(defined).then("value").otherwise(math.nan),
            pl.when(~defined).then(reason.fill_null("undefined, no reason was recorded")).alias("reason"),
            pl.col("samples").fill_null(0),
        )
        .collect()
    )
    scattered = needed["run"].rle().len() > needed["run"].n_unique()
    return needed.sort("run", maintain_order=True) if scattered else needed


class _Layouts:
    """The layout of every run, made once for all that have the same."""

    def __init__(self, needed: pl.DataFrame) -> None:
        self.keys = needed.select("metric", "epoch", "layer")
        metric, epoch, layer = self.keys
        self.columns = [metric.to_physical().to_numpy(), epoch.to_numpy(), layer.to_numpy()]
        self.known: dict[tuple[bytes, ...], Layout] = {}

    def of(self, span: slice) -> Layout:
        code = tuple(column[span].tobytes() for column in self.columns)
        if code not in self.known:
            keys = self.keys[span].iter_rows()
            self.known[code] = Layout((m, e, None if layer == WHOLE else layer) for m, e, layer in keys)
        return self.known[code]
