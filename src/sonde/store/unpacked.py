"""How large a Parquet file is once it is unpacked, from the headers of its pages: nothing is unpacked to find out.

A page says how many bytes it becomes, and a reader takes that much memory for it.  Headers are Thrift structures in
the compact protocol, of which this reads what it needs and skips the rest.
"""

import io
from collections.abc import Iterator
from typing import BinaryIO

MAGIC = b"PAR1"
_FIXED = {1: 0, 2: 0, 3: 1, 7: 8}  # bytes of a value, by its type; booleans lie in the type itself
_VARINT, _BINARY, _LISTS, _MAP, _STRUCT = (4, 5, 6), 8, (9, 10), 11, 12

ROW_GROUPS = 4  # of the file
COLUMNS = 1  # of a row group
ABOUT = 3  # of a column
PACKED, DATA_AT, DICTIONARY_AT = 7, 9, 11  # of what is said about it
PAGE_UNPACKED, PAGE_PACKED = 2, 3  # of a page


def unpacked(file: BinaryIO | io.BytesIO) -> int:
    """Bytes of all pages together; ValueError where the file is not Parquet."""
    try:
        return sum(_pages(file, *column) for column in _columns(file))
    except (IndexError, RecursionError, OverflowError):
        raise ValueError("its headers make no sense") from None


def _columns(file: BinaryIO | io.BytesIO) -> list[tuple[int, int]]:
    """Where the pages of each column begin, and how many bytes they have."""
    size = file.seek(0, io.SEEK_END)
    if size < 12:
        raise ValueError("it is too short")
    file.seek(size - 8)
    end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != MAGIC or length > size - 12:
        raise ValueError("it does not end as Parquet does")
    file.seek(size - 8 - length)
    footer, found = _Thrift(file.read(length)), []
    for field, kind in footer.fields():
        if field != ROW_GROUPS:
            footer.skip(kind)
            continue
        for _ in footer.items():
            for field, kind in footer.fields():
                if field != COLUMNS:
                    footer.skip(kind)
                    continue
                for _ in footer.items():
                    found.append(footer.column())
    return found


def _pages(file: BinaryIO | io.BytesIO, at: int, packed: int) -> int:
    total, end = 0, at + packed
    while at < end:
        file.seek(at)
        header = _Thrift(file.read(min(end - at, 1 << 20)))
        known = {PAGE_UNPACKED: 0, PAGE_PACKED: 0}
        for field, kind in header.fields():
            if field in known and kind in _VARINT:
                known[field] = header.number()
            else:
                header.skip(kind)
        if min(known.values()) < 0:
            raise ValueError("a page of negative size")
        total += known[PAGE_UNPACKED]
        at += header.at + known[PAGE_PACKED]
    return total


class _Thrift:
    """A structure in the compact protocol, read from its beginning."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and type of each field; whoever asks for the next has read or skipped the value."""
        last = 0
        while (head := self._byte()) != 0:
            last = last + (head >> 4) if head >> 4 else self.number()
            yield last, head & 15

    def items(self) -> Iterator[int]:
        """The type of each item of a list, once for each of them."""
        head = self._byte()
        count = self._varint() if head >> 4 == 15 else head >> 4
        if count > len(self.content):
            raise ValueError("a list longer than its file")
        for _ in range(count):
            yield head & 15

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
        if kind in _FIXED:
            self.at += _FIXED[kind]
        elif kind in _VARINT:
            self._varint()
        elif kind == _BINARY:
            length = self._varint()  # before the place is taken: reading it moves on
            self.at += length
        elif kind in _LISTS:
            for item in self.items():
                self.skip(3 if item in (1, 2) else item)
        elif kind == _MAP:
            count = self._varint()
            kinds = self._byte() if count else 0
            for _ in range(min(count, len(self.content))):
                self.skip(kinds >> 4)
                self.skip(kinds & 15)
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner)
        else:
            raise ValueError(f"a value of unknown type {kind}")

    def number(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")
        return value | byte << shift

    def _byte(self) -> int:
        byte = self.content[self.at]
        self.at += 1
        return byte
