"""Which rows a reader asks for, and the rows of one run as a slice of a frame that many runs share."""

from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import dataclass

import polars as pl

from sonde.metrics import family_of, stored_name
from sonde.metrics.rows import empty

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
