"""What stored runs measured, looked up in their rows: a reading of many runs at once, or all readings of one run."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from sonde.metrics.rows import Reading, undefined
from sonde.store.row_query import row_slices

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_WHOLE = -1
"""Stands for the layer of a measurement of the whole network."""

_ROWS_AT_ONCE = 1_000_000  # whose readings are taken together: a frame of them is a copy

_Key = tuple[str, int, int | None]
"""Metric, epoch and layer."""


class Readings:
    """Rows of many runs.  Runs are asked the same things, so each is looked up for all of them at once."""

    def __init__(self, rows: pl.DataFrame) -> None:
        self.rows = rows
        self._of_metric: dict[str, pl.DataFrame] = {}
        self._looked_up: dict[tuple[object, ...], dict[str, Reading]] = {}

    def at(self, metric: str, **where: int) -> dict[str, Reading]:
        """Run → reading, of the runs that took it; undefined where there are several at one place."""
        key = (metric, *where.items())
        if key not in self._looked_up:
            if metric not in self._of_metric:
                self._of_metric[metric] = _known(self.rows.filter(metric=metric))
            here = self._of_metric[metric].filter(**where)
            found: dict[str, Reading] = {}
            for run, value, reason, samples in here.select("run", "value", "reason", "samples").iter_rows():
                several = f"{metric} has several values there" if run in found else reason
                found[run] = Reading(metric=metric, value=value, samples=samples, reason=several)
            self._looked_up[key] = found
        return self._looked_up[key]

    def value(self, run: Mapping[str, Any], metric: str, **where: int) -> float:
        """The value of one run, given as its line of `Evidence.runs`; NaN where it is undefined or was not taken."""
        reading = self.at(metric, **where).get(run["run"])
        return math.nan if reading is None else reading.value

    def change(self, run: Mapping[str, Any], metric: str, **where: int) -> float:
        """The value after the last epoch relative to initialisation."""
        before, after = (self.value(run, metric, epoch=epoch, **where) for epoch in (0, run["epochs"]))
        return after / before if before > 0 else math.nan


class ReadingLayout:
    """Where each reading stands among those of a run; what is asked of it is known for all runs that share it."""

    def __init__(self, keys: Iterable[_Key]) -> None:
        self.positions = {key: position for position, key in enumerate(keys)}
        self._epochs: dict[tuple[str, Sequence[int | None]], list[int]] = {}
        self._across: dict[tuple[str, int, Sequence[int]], slice | list[int | None]] = {}
        self._gaps: dict[tuple[str, int, Sequence[int]], Reading | None] = {}

    def epochs(self, metric: str, layers: Sequence[int | None]) -> list[int]:
        """The epochs at which it was measured at any of the layers."""
        key = (metric, layers)
        if key not in self._epochs:
            epochs = {epoch for name, epoch, layer in self.positions if name == metric and layer in layers}
            self._epochs[key] = sorted(epochs)
        return self._epochs[key]

    def across(self, metric: str, epoch: int, layers: Sequence[int]) -> slice | list[int | None]:
        """Its positions at one epoch, layer by layer; None where it was not measured, a slice where they follow."""
        key = (metric, epoch, layers)
        if key not in self._across:
            places = [self.positions.get((metric, epoch, layer)) for layer in layers]
            first = places[0] if places and places[0] is not None else 0
            run = slice(first, first + len(places))
            self._across[key] = run if places == list(range(run.start, run.stop)) else places
        return self._across[key]

    def gap(self, metric: str, epoch: int, layers: Sequence[int]) -> Reading | None:
        """Why a mean over the layers is undefined in every run, where it was not measured at the first of them."""
        key = (metric, epoch, layers)
        if key not in self._gaps:
            measured = (metric, epoch, layers[0]) in self.positions
            why = f"layer {layers[0]}: {not_measured(metric, epoch)}"
            self._gaps[key] = None if measured else undefined(metric, why)
        return self._gaps[key]


def not_measured(metric: str, epoch: int) -> str:
    """The reason of a reading that was not taken."""
    return f"{metric} was not measured at epoch {epoch}"


@dataclass(frozen=True, kw_only=True)
class ReadingArray:
    """The readings of one run, by metric, epoch and layer."""

    layout: ReadingLayout  # shared by runs that measured the same things
    values: "NDArray[np.float64]"  # in the order of the layout; NaN where undefined
    reasons: Mapping[int, str]  # by position in that order, of those that are undefined
    samples: "NDArray[np.int64]"

    def at(self, metric: str, epoch: int, layer: int | None = None) -> Reading:
        """The reading, or an undefined one that says it was not taken."""
        n = self.layout.positions.get((metric, epoch, layer))
        if n is None:
            return undefined(metric, not_measured(metric, epoch), layer=layer)
        return Reading(
            metric=metric,
            value=self.values.item(n),
            samples=self.samples.item(n),
            layer=layer,
            reason=self.reasons.get(n),
        )

    def across(self, metric: str, epoch: int, layers: Sequence[int]) -> list[float]:
        """The values of one epoch, layer by layer; NaN where undefined, and `at` tells why."""
        places = self.layout.across(metric, epoch, layers)
        if isinstance(places, slice):
            values: list[float] = self.values[places].tolist()
            return values
        return [math.nan if n is None else self.values.item(n) for n in places]

    def mean(self, metric: str, epoch: int, layers: Sequence[int]) -> Reading:
        """The mean over the layers; undefined where one of them is, for an average covers the layers it names."""
        if not layers:
            return undefined(metric, "there is no layer between the first and the last state")
        if gap := self.layout.gap(metric, epoch, layers):
            return gap
        values = self.across(metric, epoch, layers)
        for layer, value in zip(layers, values, strict=True):
            if math.isnan(value):
                return undefined(metric, f"layer {layer}: {self.at(metric, epoch, layer).reason}")
        return Reading(metric=metric, value=math.fsum(value / len(layers) for value in values), samples=0)


def readings_of(rows: pl.DataFrame, runs: Iterable[str], metrics: Sequence[str]) -> Iterator[ReadingArray]:
    """The readings of each of these runs, by id; runs that measured the same things share a layout."""
    made: _MadeLayouts = {}
    found = {run: array for part in _parts(rows) for run, array in _arrays(_by_run(part, metrics), made)}
    none = ReadingArray(
        layout=ReadingLayout(()),
        values=pl.Series(dtype=pl.Float64).to_numpy(),
        reasons={},
        samples=pl.Series(dtype=pl.Int64).to_numpy(),
    )
    for run in runs:
        yield found.get(run, none)


def _parts(rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Frames of whole runs, of about a million rows; all rows at once where those of a run do not follow each other."""
    lengths = rows["run"].rle().struct.field("len")
    whole = len(lengths) == rows["run"].n_unique()
    first, count = 0, 0
    for length in lengths if whole else [rows.height]:
        count += length
        if count >= _ROWS_AT_ONCE:
            yield rows.slice(first, count)
            first, count = first + count, 0
    yield rows.slice(first, count)


def _arrays(known: pl.DataFrame, made: "_MadeLayouts") -> Iterator[tuple[str, ReadingArray]]:
    layouts, reasons = _Layouts(known, made), _Reasons(known["reason"])
    values, samples = known["value"].to_numpy(), known["samples"].to_numpy()
    for run, part in row_slices(known):
        span = slice(part.first, part.first + part.count)
        yield (
            run,
            ReadingArray(layout=layouts.of(span), values=values[span], reasons=reasons.of(span), samples=samples[span]),
        )


def _known(rows: pl.DataFrame | pl.LazyFrame) -> pl.DataFrame:
    """NaN where a value is undefined or not finite, with the reason for it."""
    defined = (pl.col("defined") & pl.col("value").is_finite()).fill_null(False)
    reason = pl.when(pl.col("reason") == "").then(None).otherwise("reason")
    return (
        rows.lazy()
        .with_columns(
            value=pl.when(defined).then("value").otherwise(math.nan),
            reason=pl.when(~defined).then(reason.fill_null("no reason was recorded")),
            samples=pl.col("samples").fill_null(0),
        )
        .collect()
    )


def _by_run(rows: pl.DataFrame, metrics: Sequence[str]) -> pl.DataFrame:
    """The readings of these metrics, those of a run together."""
    wanted = rows.lazy().filter(pl.col("metric").is_in(metrics))
    known = _known(
        wanted.select(
            "run",
            "epoch",
            pl.col("metric").cast(pl.Enum(metrics)),
            pl.col("layer").fill_null(_WHOLE),
            "value",
            "defined",
            "reason",
            "samples",
        )
    )
    scattered = known["run"].rle().len() > known["run"].n_unique()
    return known.sort("run", maintain_order=True) if scattered else known


class _Reasons:
    """Why readings are undefined: few of them are."""

    def __init__(self, reasons: pl.Series) -> None:
        self.places = reasons.is_not_null().arg_true().to_numpy()
        self.texts = reasons.drop_nulls().to_list()

    def of(self, span: slice) -> dict[int, str]:
        first, last = self.places.searchsorted((span.start, span.stop)).tolist()
        places = self.places[first:last] - span.start
        return dict(zip(places.tolist(), self.texts[first:last], strict=True))


_MadeLayouts = dict[tuple[bytes, ...], ReadingLayout]


class _Layouts:
    """The layout of every run, `made` once for all that have the same."""

    def __init__(self, known: pl.DataFrame, made: _MadeLayouts) -> None:
        self.keys = known.select("metric", "epoch", "layer")
        metric, epoch, layer = self.keys
        self.columns = [metric.to_physical().to_numpy(), epoch.to_numpy(), layer.to_numpy()]
        self.made = made

    def of(self, span: slice) -> ReadingLayout:
        code = tuple(column[span].tobytes() for column in self.columns)
        if code not in self.made:
            keys = self.keys[span].iter_rows()
            self.made[code] = ReadingLayout((m, e, None if layer == _WHOLE else layer) for m, e, layer in keys)
        return self.made[code]
