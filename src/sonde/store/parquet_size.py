"""How large a Parquet file is once it is unpacked, from the headers of its pages: nothing is unpacked to find out.

A page says how many bytes and values it becomes, and a reader takes that much memory for it.  Headers are Thrift
structures in the compact protocol, of which this reads what it needs and skips the rest.
"""

import io
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

MAGIC = b"PAR1"
_FIXED = {1: 0, 2: 0, 3: 1, 7: 8}  # bytes of a value, by its type; booleans lie in the type itself
_VARINT, _BINARY, _LISTS, _MAP, _STRUCT = (5, 6, 4), 8, (9, 10), 11, 12

ROWS, ROW_GROUPS = 3, 4  # of the file
COLUMNS, ROWS_OF_GROUP = 1, 3  # of a row group
ABOUT = 3  # of a column
PACKED, DATA_AT, DICTIONARY_AT = 7, 9, 11  # of what is said about it
PAGE_UNPACKED, PAGE_PACKED, DATA_PAGES = 2, 3, (5, 8)  # of a page
VALUES = 1  # of a data page


class Size(NamedTuple):
    """Of a file once it is unpacked: rows by whichever header names most, and bytes of all pages together."""

    rows: int
    bytes: int


def unpacked(file: BinaryIO | io.BytesIO) -> int:
    """Bytes of all pages together; ValueError where the file is not Parquet."""
    return size(file).bytes


def size(file: BinaryIO | io.BytesIO) -> Size:
    """Rows and bytes; ValueError where the file is not Parquet."""
    try:
        rows, columns = _columns(file)
        groups = [[_pages(file, *column) for column in group] for group in columns]
    except (IndexError, RecursionError, OverflowError):
        raise ValueError("its headers make no sense") from None
    values = sum(max((one.rows for one in group), default=0) for group in groups)
    return Size(max(rows, values), sum(one.bytes for group in groups for one in group))


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
    if end[4:] != MAGIC or length > size - 12:
        raise ValueError("it does not end as Parquet does")
    file.seek(size - 8 - length)
    footer, said, of_groups = _Thrift(file.read(length)), 0, 0
    found: list[list[tuple[int, int]]] = []
    for field, kind in footer.fields():
        if field == ROWS and kind in _VARINT:
            said = footer.number()
        elif field != ROW_GROUPS:
            footer.skip(kind)
        else:
            for _ in footer.items():
                columns: list[tuple[int, int]] = []
                for field, kind in footer.fields():
                    if field == ROWS_OF_GROUP and kind in _VARINT:
                        of_groups += footer.number()
                    elif field != COLUMNS:
                        footer.skip(kind)
                    else:
                        columns += [footer.column() for _ in footer.items()]
                found.append(columns)
    return max(said, of_groups), found


def _pages(file: BinaryIO | io.BytesIO, at: int, packed: int) -> Size:
    total, values, end = 0, 0, at + packed
    while at < end:
        file.seek(at)
        header = _Thrift(file.read(min(end - at, 1 << 20)))
        known = {PAGE_UNPACKED: 0, PAGE_PACKED: 0}
        for field, kind in header.fields():
            if field in known and kind in _VARINT:
                known[field] = header.number()
            elif field in DATA_PAGES and kind == _STRUCT:
                for inner, of in header.fields():
                    if inner == VALUES and of in _VARINT:
                        values += max(header.number(), 0)
                    else:
                        header.skip(of)
            else:
                header.skip(kind)
        if min(known.values()) < 0:
            raise ValueError("a page of negative size")
        total += known[PAGE_UNPACKED]
        at += header.at + known[PAGE_PACKED]
    return Size(values, total)


class _Thrift:
    """A structure in the compact protocol, read from its beginning; quick, for every file of rows is looked at."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and type of each field; whoever asks for the next has read or skipped the value."""
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
            if field != ABOUT:
                self.skip(kind)
                continue
            for inner, of in self.fields():
                if inner in (PACKED, DATA_AT, DICTIONARY_AT) and of in _VARINT:
                    known[inner] = self.number()
                else:
                    self.skip(of)
        begin = [known[at] for at in (DATA_AT, DICTIONARY_AT) if known.get(at, 0) > 0]
        if not begin or known.get(PACKED, -1) < 0:
            raise ValueError("a column without a place")
        return min(begin), known[PACKED]

    def skip(self, kind: int) -> None:
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
        """How many items follow, and of which type."""
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
