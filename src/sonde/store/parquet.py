"""Rows of one run out of a Parquet file, and sizes from the headers of Parquet files and Arrow streams.

Rows must have the columns of a run's rows, name that run, and be no more than memory holds.  Sizes are read from
headers, so that nothing is decoded or unpacked to find out.

A page of a Parquet file says how many bytes and values it becomes, and a reader allocates that much memory for it.
Headers are Thrift structures in the compact protocol; this module reads what it needs and skips the rest.  Sonde
writes Arrow streams without compression and without dictionaries, so the rows are in the bytes.  Their headers are
flatbuffers.
"""

import io
import math
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import polars as pl

from sonde.core.errors import SondeError
from sonde.metrics.rows import SCHEMA
from sonde.store.files import MOST_LAYERS, ROWS_OF_RUN, Place, refuse_rows, refuse_unpacked

_LARGEST = {"epoch": 10**9, "step": 2**53, "layer": MOST_LAYERS, "samples": 2**53}


def read_parquet(content: bytes, what: object, fix: str) -> pl.DataFrame:
    """The table of a Parquet file, once its headers say that it is no larger than its bytes explain."""
    try:
        found = parquet_size(io.BytesIO(content))
        refuse_rows(found.rows, len(content), what, fix)
        refuse_unpacked(found.bytes, len(content), what, fix)
        return pl.read_parquet(io.BytesIO(content), n_rows=ROWS_OF_RUN + 1, parallel="none")
    except (pl.exceptions.PolarsError, ValueError, OverflowError) as error:
        said = (str(error).splitlines() or [""])[0]
        raise SondeError(f"{what} cannot be read ({said}): {fix}") from None
    except BaseException as error:  # a file made to fail may end in a panic of the library, which is no Exception
        if type(error).__name__ != "PanicException":
            raise
        raise SondeError(f"{what} cannot be read (its columns make no sense): {fix}") from None


def read_table(content: bytes, path: Place, run: str, schema: pl.Schema, fix: str) -> pl.DataFrame:
    """The rows of a file of this run."""
    rows = read_parquet(content, path, fix)
    if rows.schema != schema:
        raise SondeError(f"{path} has the columns of another version: {fix}")
    refuse_nonsense(rows, path, run, fix)
    if schema == SCHEMA and rows["epoch"].null_count():
        raise SondeError(f"{path} has rows without epoch: {fix}")
    return rows


def refuse_nonsense(rows: pl.DataFrame, path: Place, run: str, fix: str) -> None:
    """Raise unless the rows name this run and have a valid value in every required column."""
    runs = rows["run"]
    if runs.null_count() or (runs != run).any():
        unknown = runs.filter(runs.ne_missing(run))
        raise SondeError(f"{path} has rows of {unknown[0]!r}, but the run is {run!r}: {fix}")
    refuse_odd_values(rows, path, fix)


def refuse_odd_values(rows: pl.DataFrame, path: object, fix: str) -> None:
    """Raise unless every row has a metric, a step, and a finite number or none."""
    epoch = () if "module" in rows.columns else ("epoch",)  # a watched loop has none
    for name in ("step", "metric", "value", "defined", "samples", *epoch):
        if rows[name].null_count():
            raise SondeError(f"{path} has rows without {name}: {fix}")
    value = rows["value"]
    # A finite sum has finite terms.
    if not math.isfinite(value.sum()) and not (value.is_finite() | ~rows["defined"]).all():
        raise SondeError(f"{path} has rows that are defined and not finite: {fix}")
    for name, most in _LARGEST.items():
        for bound in (rows[name].min(), rows[name].max()):
            if isinstance(bound, int) and not 0 <= bound <= most:
                raise SondeError(f"{path} has rows with {name} = {bound}: {fix}")


# ── the size of a Parquet file ───────────────────────────────────────────────────────────────────────
_MAGIC = b"PAR1"
_FIXED = {1: 0, 2: 0, 3: 1, 7: 8}  # bytes of a value, by its type; booleans lie in the type itself
_VARINT, _BINARY, _LISTS, _MAP, _STRUCT = (5, 6, 4), 8, (9, 10), 11, 12

_ROWS, _ROW_GROUPS = 3, 4  # of the file
_COLUMNS, _ROWS_OF_GROUP = 1, 3  # of a row group
_ABOUT = 3  # of a column
_PACKED, _DATA_AT, _DICTIONARY_AT = 7, 9, 11  # of what is said about it
_PAGE_UNPACKED, _PAGE_PACKED, _DATA_PAGES = 2, 3, (5, 8)  # of a page
_VALUES = 1  # of a data page


class ParquetSize(NamedTuple):
    """The size of a file when unpacked: the largest number of rows that a header names, and the bytes of all pages."""

    rows: int
    bytes: int


def parquet_size(file: BinaryIO | io.BytesIO) -> ParquetSize:
    """Rows and bytes; ValueError where the file is not Parquet."""
    try:
        rows, columns = _columns(file)
        groups = [[_pages(file, *column) for column in group] for group in columns]
    except (IndexError, RecursionError, OverflowError):
        raise ValueError("its headers make no sense") from None
    values = sum(max((one.rows for one in group), default=0) for group in groups)
    return ParquetSize(max(rows, values), sum(one.bytes for group in groups for one in group))


def _columns(file: BinaryIO | io.BytesIO) -> tuple[int, list[list[tuple[int, int]]]]:
    """How many rows there are, and of each row group where the pages of its columns begin and how many bytes they
    have.
    """
    size = file.seek(0, io.SEEK_END)
    if size < 12:
        raise ValueError("it is too short")
    file.seek(size - 8)
    end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != _MAGIC or length > size - 12:
        raise ValueError("it does not end as Parquet does")
    file.seek(size - 8 - length)
    footer, said, of_groups = _Thrift(file.read(length)), 0, 0
    found: list[list[tuple[int, int]]] = []
    for field, kind in footer.fields():
        if field == _ROWS and kind in _VARINT:
            said = footer.number()
        elif field != _ROW_GROUPS:
            footer.skip(kind)
        else:
            for _ in footer.items():
                columns: list[tuple[int, int]] = []
                for field, kind in footer.fields():
                    if field == _ROWS_OF_GROUP and kind in _VARINT:
                        of_groups += footer.number()
                    elif field != _COLUMNS:
                        footer.skip(kind)
                    else:
                        columns += [footer.column() for _ in footer.items()]
                found.append(columns)
    return max(said, of_groups), found


def _pages(file: BinaryIO | io.BytesIO, at: int, packed: int) -> ParquetSize:
    """Values and unpacked bytes of the pages of a column chunk, from their headers; the pages are not decoded."""
    total, values, end = 0, 0, at + packed
    while at < end:
        file.seek(at)
        header = _Thrift(file.read(min(end - at, 1 << 20)))
        known = {_PAGE_UNPACKED: 0, _PAGE_PACKED: 0}
        for field, kind in header.fields():
            if field in known and kind in _VARINT:
                known[field] = header.number()
            elif field in _DATA_PAGES and kind == _STRUCT:
                for inner, of in header.fields():
                    if inner == _VALUES and of in _VARINT:
                        values += max(header.number(), 0)
                    else:
                        header.skip(of)
            else:
                header.skip(kind)
        if min(known.values()) < 0:
            raise ValueError("a page of negative size")
        total += known[_PAGE_UNPACKED]
        at += header.at + known[_PAGE_PACKED]
    return ParquetSize(values, total)


class _Thrift:
    """Reads a structure in the compact protocol.  It is fast, because every file of rows is checked."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and type of each field; the caller reads or skips the value before it asks for the next."""
        last, content = 0, self.content
        while head := content[self.at]:
            self.at += 1
            last = last + (head >> 4) if head >> 4 else self.number()
            yield last, head & 15
        self.at += 1

    def items(self) -> range:
        """A range as long as a list, whose items follow."""
        return range(self._list()[0])

    def column(self) -> tuple[int, int]:
        """Of a column: where its pages begin, and how many bytes they have."""
        known: dict[int, int] = {}
        for field, kind in self.fields():
            if field != _ABOUT:
                self.skip(kind)
                continue
            for inner, of in self.fields():
                if inner in (_PACKED, _DATA_AT, _DICTIONARY_AT) and of in _VARINT:
                    known[inner] = self.number()
                else:
                    self.skip(of)
        begin = [known[at] for at in (_DATA_AT, _DICTIONARY_AT) if known.get(at, 0) > 0]
        if not begin or known.get(_PACKED, -1) < 0:
            raise ValueError("a column without a place")
        return min(begin), known[_PACKED]

    def skip(self, kind: int) -> None:
        """Move behind a value without building it."""
        if kind in _VARINT:
            content, at = self.content, self.at
            while content[at] & 128:
                at += 1
            self.at = at + 1
        elif kind == _BINARY:
            length = self._varint()  # before the place is taken: reading it moves on
            self.at += length
        elif kind == _STRUCT:
            content = self.content
            while head := content[self.at]:
                self.at += 1
                if not head >> 4:
                    self._varint()
                self.skip(head & 15)
            self.at += 1
        elif kind in _FIXED:
            self.at += _FIXED[kind]
        elif kind in _LISTS:
            count, item = self._list()
            item = 3 if item in (1, 2) else item
            for _ in range(count):
                self.skip(item)
        elif kind == _MAP:
            count = self._varint()
            kinds = self.content[self.at] if count else 0
            self.at += bool(count)
            for _ in range(min(count, len(self.content))):
                self.skip(kinds >> 4)
                self.skip(kinds & 15)
        else:
            raise ValueError(f"a value of unknown type {kind}")

    def number(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _list(self) -> tuple[int, int]:
        """The number of items that follow, and their type."""
        head = self.content[self.at]
        self.at += 1
        count = self._varint() if head >> 4 == 15 else head >> 4
        if count > len(self.content):
            raise ValueError("a list longer than its file")
        return count, head & 15

    def _varint(self) -> int:
        content, at = self.content, self.at
        byte = content[at]
        value, shift = byte & 127, 7
        while byte & 128:
            if shift > 63:
                raise ValueError("a number of more than 64 bits")
            at += 1
            byte = content[at]
            value |= (byte & 127) << shift
            shift += 7
        self.at = at + 1
        return value


# ── the rows of an Arrow stream ──────────────────────────────────────────────────────────────────────
_SCHEMA, _BATCH = 1, 3  # kinds of messages
_KIND, _HEADER, _BODY = 1, 2, 3  # of a message
_LENGTH, _NODES, _COMPRESSION = 0, 1, 3  # of a batch


def rows_of_stream(content: bytes) -> int:
    """Rows of all batches; ValueError where it is no stream that Sonde writes."""
    try:
        return _count_rows(content)
    except (struct.error, IndexError, OverflowError):
        raise ValueError("its headers make no sense") from None


def _count_rows(content: bytes) -> int:
    """The rows of an Arrow stream, from the headers of its batches; raises where they exceed its bytes."""
    at, rows = 0, 0
    while at + 8 <= len(content):
        mark, length = struct.unpack_from("<Ii", content, at)
        if mark != 0xFFFFFFFF or length < 0:
            raise ValueError("it is no Arrow stream")
        if length == 0:
            break
        message = _root(content, at + 8)
        kind, header = message.byte(_KIND), message.table(_HEADER)
        if kind == _BATCH:
            rows += _rows_of(header)
        elif kind != _SCHEMA:
            raise ValueError("it has messages that Sonde does not write")
        body = message.long(_BODY)
        if body < 0:
            raise ValueError("a message of negative size")
        at += 8 + length + body
    if rows > len(content):
        raise ValueError(f"{rows:,} rows in {len(content):,} bytes")
    return rows


def _rows_of(batch: "_Table") -> int:
    if batch.place(_COMPRESSION) is not None:
        raise ValueError("it is compressed, as Sonde's are not")
    rows = batch.long(_LENGTH)
    if rows < 0 or any(length != rows for length in batch.lengths(_NODES)):
        raise ValueError("its columns are not of one length")
    return rows


def _root(content: bytes, at: int) -> "_Table":
    return _Table(content, at + int(struct.unpack_from("<I", content, at)[0]))


class _Table:
    """A table of a flatbuffer: where its fields lie, or that they are not there."""

    def __init__(self, content: bytes, at: int) -> None:
        self.content, self.at = content, at
        self.vtable = at - int(struct.unpack_from("<i", content, at)[0])
        if self.vtable < 0:
            raise ValueError("its headers make no sense")

    def place(self, field: int) -> int | None:
        size = struct.unpack_from("<H", self.content, self.vtable)[0]
        if 4 + 2 * field >= size:
            return None
        offset = struct.unpack_from("<H", self.content, self.vtable + 4 + 2 * field)[0]
        return self.at + offset if offset else None

    def byte(self, field: int) -> int:
        place = self.place(field)
        return 0 if place is None else self.content[place]

    def long(self, field: int) -> int:
        place = self.place(field)
        return 0 if place is None else int(struct.unpack_from("<q", self.content, place)[0])

    def table(self, field: int) -> "_Table":
        place = self.place(field)
        if place is None:
            raise ValueError("a message without a header")
        return _root(self.content, place)

    def lengths(self, field: int) -> list[int]:
        """Of a vector of nodes, which are pairs of a length and a count of nulls."""
        place = self.place(field)
        if place is None:
            return []
        at = place + int(struct.unpack_from("<I", self.content, place)[0])
        count = struct.unpack_from("<I", self.content, at)[0]
        if at + 4 + 16 * count > len(self.content):
            raise ValueError("a list longer than its file")
        return [int(struct.unpack_from("<q", self.content, at + 4 + 16 * i)[0]) for i in range(count)]
