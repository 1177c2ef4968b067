"""How many rows an Arrow stream has, from the headers of its messages: nothing is decoded to find out.

Sonde writes streams without compression and without dictionaries, so their rows lie in their bytes.  Headers are
flatbuffers, of which this reads what it needs.
"""

import struct

SCHEMA, BATCH = 1, 3  # kinds of messages
KIND, HEADER, BODY = 1, 2, 3  # of a message
LENGTH, NODES, COMPRESSION = 0, 1, 3  # of a batch


def rows_in(content: bytes) -> int:
    """Rows of all batches; ValueError where it is no stream that Sonde writes."""
    try:
        return _rows_in(content)
    except (struct.error, IndexError, OverflowError):
        raise ValueError("its headers make no sense") from None


def _rows_in(content: bytes) -> int:
    at, rows = 0, 0
    while at + 8 <= len(content):
        mark, length = struct.unpack_from("<Ii", content, at)
        if mark != 0xFFFFFFFF or length < 0:
            raise ValueError("it is no Arrow stream")
        if length == 0:
            break
        message = _root(content, at + 8)
        kind, header = message.byte(KIND), message.table(HEADER)
        if kind == BATCH:
            rows += _rows_of(header)
        elif kind != SCHEMA:
            raise ValueError("it has messages that Sonde does not write")
        body = message.long(BODY)
        if body < 0:
            raise ValueError("a message of negative size")
        at += 8 + length + body
    if rows > len(content):
        raise ValueError(f"{rows:,} rows in {len(content):,} bytes")
    return rows


def _rows_of(batch: "_Table") -> int:
    if batch.place(COMPRESSION) is not None:
        raise ValueError("it is compressed, as Sonde's are not")
    rows = batch.long(LENGTH)
    if rows < 0 or any(length != rows for length in batch.lengths(NODES)):
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
