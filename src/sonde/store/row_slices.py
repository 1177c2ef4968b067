"""The rows of one run as a stretch of a frame that many share, and many stretches as one frame."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import polars as pl

from sonde.metrics.rows import empty

CHUNK = 100_000  # rows that lie together in what is read


@dataclass(frozen=True)
class Stretch:
    """The rows of one run, in a frame that may hold others' too."""

    frame: pl.DataFrame
    first: int
    count: int


NO_ROWS = Stretch(empty(), 0, 0)


def stretches(frame: pl.DataFrame) -> Iterator[tuple[str, Stretch]]:
    """Every run of a frame with its rows, which lie together."""
    first = 0
    for count, run in frame["run"].rle().struct.unnest().iter_rows():
        yield run, Stretch(frame, first, count)
        first += count


def joined(stretches: Iterable[Stretch]) -> pl.DataFrame:
    """The rows of all of them, in order; what lies side by side in the index stays one piece."""
    pieces: list[Stretch] = []
    for stretch in stretches:
        if not stretch.count:
            continue
        last = pieces[-1] if pieces else NO_ROWS
        if last.frame is stretch.frame and last.first + last.count == stretch.first:
            pieces[-1] = Stretch(last.frame, last.first, last.count + stretch.count)
        else:
            pieces.append(stretch)
    return pl.concat([empty(), *_in_large_chunks(pieces)])


def _in_large_chunks(pieces: Iterable[Stretch]) -> Iterator[pl.DataFrame]:
    """Frames of many small chunks are slow in everything that is done with them later."""
    small: list[pl.DataFrame] = []
    rows = 0
    for piece in pieces:
        small.append(piece.frame.slice(piece.first, piece.count))
        rows += piece.count
        if rows >= CHUNK:
            yield pl.concat(small, rechunk=len(small) > 1)
            small, rows = [], 0
    if small:
        yield pl.concat(small, rechunk=len(small) > 1)
