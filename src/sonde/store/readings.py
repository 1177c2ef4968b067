"""Rows of stored runs: which of them a reader asks for, and the readings in them.

A frame often holds the rows of many runs; a `RowSlice` is the part of one run.  `Readings` looks up one reading of many
runs at once, `ReadingArray` all readings of one run.
"""

import math
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from sonde.metrics import family_of, stored_name
from sonde.metrics.rows import Reading, empty, undefined

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# ── rows that are asked for ────────────────────────────────────────────────────────────────────────────
HeavyFamilies = tuple[str, ...]
"""Families of metrics that the index leaves out of a run."""

_CHUNK = 100_000  # rows of a chunk of the joined frame


@dataclass(frozen=True, kw_only=True)
class RowQuery:
    """Which rows a reader asks for.

    `where` is applied to frames that hold whole runs and metrics, often several: windows in it are over both.
    """

    metrics: Collection[str] | None = None  # None: all
    layers: bool = True  # whether rows of single layers are asked for, beside those of the whole network
    where: pl.Expr | None = None

    def __post_init__(self) -> None:
        """Metrics may be asked for by their aliases."""
        if self.metrics is not None:
            object.__setattr__(self, "metrics", frozenset(map(stored_name, self.metrics)))

    @property
    def is_empty(self) -> bool:
        """Whether no rows are asked for."""
        return self.metrics is not None and not self.metrics

    def select(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows that are asked for."""
        asked = [] if self.metrics is None else [pl.col("metric").is_in(list(self.metrics))]
        if not self.layers:
            asked.append(pl.col("layer").is_null())
        rows = rows.filter(*asked) if asked else rows
        return rows if self.where is None else rows.filter(self.where)

    def includes(self, family: str) -> bool:
        """Whether some of the rows may be of the family."""
        return self.metrics is None or any(family_of(metric) == family for metric in self.metrics)

    def avoids(self, families: HeavyFamilies) -> bool:
        """Whether none of the rows is of these families."""
        return self.is_empty or not any(map(self.includes, families))


@dataclass(frozen=True)
class RowSlice:
    """The rows of one run, in a frame that may hold others' too."""

    frame: pl.DataFrame
    first: int
    count: int

    @property
    def rows(self) -> pl.DataFrame:
        """The rows as a frame of their own, without a copy."""
        return self.frame.slice(self.first, self.count)


NO_ROWS = RowSlice(empty(), 0, 0)


def row_slices(frame: pl.DataFrame) -> Iterator[tuple[str, RowSlice]]:
    """Every run of a frame with its rows, which follow each other."""
    first = 0
    for count, run in frame["run"].rle().struct.unnest().iter_rows():
        yield run, RowSlice(frame, first, count)
        first += count


def rows_of_runs(rows: pl.DataFrame, runs: Container[str]) -> pl.DataFrame:
    """The rows of these runs, in order.  Where rows of many of them follow each other, they are not copied."""
    return join_slices((part for run, part in row_slices(rows) if run in runs), rows.clear())


def join_slices(slices: Iterable[RowSlice], none: pl.DataFrame | None = None) -> pl.DataFrame:
    """The rows of all slices, in order, with the columns of `none`.

    Adjacent slices of one frame are joined without a copy.
    """
    pieces: list[RowSlice] = []
    for one in slices:
        if not one.count:
            continue
        last = pieces[-1] if pieces else NO_ROWS
        if last.frame is one.frame and last.first + last.count == one.first:
            pieces[-1] = RowSlice(last.frame, last.first, last.count + one.count)
        else:
            pieces.append(one)
    return pl.concat([empty() if none is None else none, *_in_large_chunks(pieces)])


def _in_large_chunks(pieces: Iterable[RowSlice]) -> Iterator[pl.DataFrame]:
    """Frames of many small chunks make every later operation slow."""
    small: list[pl.DataFrame] = []
    rows = 0
    for piece in pieces:
        small.append(piece.rows)
        rows += piece.count
        if rows >= _CHUNK:
            yield pl.concat(small, rechunk=len(small) > 1)
            small, rows = [], 0
    if small:
        yield pl.concat(small, rechunk=len(small) > 1)


# ── readings ───────────────────────────────────────────────────────────────────────────────────────
_WHOLE = -1
"""Stands for the layer of a measurement of the whole network."""

_ROWS_AT_ONCE = 1_000_000  # whose readings are taken together: a frame of them is a copy

_Key = tuple[str, int, int | None]
"""Metric, epoch and layer."""


class Readings:
    """Looks up readings in the rows of many runs, each for all runs at once."""

    def __init__(self, rows: pl.DataFrame | Callable[..., pl.DataFrame]) -> None:
        """`rows` are in memory, or a function reads them: (metric, epoch=…, layer=…) → rows."""
        self.rows = rows
        self._of_metric: dict[str, pl.DataFrame] = {}
        self._looked_up: dict[tuple[object, ...], dict[str, Reading]] = {}

    def at(self, metric: str, **where: int) -> dict[str, Reading]:
        """Run → reading, of the runs that took it; undefined where there are several at one place."""
        key = (metric, *where.items())
        if key not in self._looked_up:
            found: dict[str, Reading] = {}
            for run, value, reason, samples in self._there(metric, where).iter_rows():
                several = f"{metric} has several values there" if run in found else reason
                found[run] = Reading(metric=metric, value=value, samples=samples, reason=several)
            self._looked_up[key] = found
        return self._looked_up[key]

    def _there(self, metric: str, where: Mapping[str, int]) -> pl.DataFrame:
        if isinstance(self.rows, pl.DataFrame):
            if metric not in self._of_metric:
                self._of_metric[metric] = _known(self.rows.filter(metric=metric))
            here = self._of_metric[metric].filter(**where)
        else:
            here = _known(self.rows(metric, **where))
        return here.select("run", "value", "reason", "samples")

    def value(self, run: Mapping[str, Any], metric: str, **where: int) -> float:
        """The value of one run, given as its line of `Evidence.runs`; NaN where it is undefined or was not taken."""
        reading = self.at(metric, **where).get(run["run"])
        return math.nan if reading is None else reading.value

    def change(self, run: Mapping[str, Any], metric: str, **where: int) -> float:
        """The value after the last epoch relative to initialisation."""
        before, after = (self.value(run, metric, epoch=epoch, **where) for epoch in (0, run["epochs"]))
        return after / before if before > 0 else math.nan


class ReadingLayout:
    """The position of each reading in the arrays of a run; runs that measured the same things share it."""

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
        """The positions of a metric at one epoch: a slice where they are consecutive, None where not measured."""
        key = (metric, epoch, layers)
        if key not in self._across:
            places = [self.positions.get((metric, epoch, layer)) for layer in layers]
            first = places[0] if places and places[0] is not None else 0
            run = slice(first, first + len(places))
            self._across[key] = run if places == list(range(run.start, run.stop)) else places
        return self._across[key]

    def gap(self, metric: str, epoch: int, layers: Sequence[int]) -> Reading | None:
        """The undefined mean over layers where the first of them was not measured; else None."""
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
        """The reading at an epoch and layer; undefined, with the reason, where none was taken."""
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
        """The mean over the layers; undefined where one of them is."""
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
    """Frames of whole runs, of about a million rows each; one frame where the rows of a run are scattered."""
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
    """The reasons of undefined readings, which are few."""

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
