"""The index: a copy of ended runs in few files.  Many runs are read from it at once, and only the rows asked for.

    .index/index.json         names, sizes and checksums of the other files, and its own checksum
    .index/runs-….parquet     a line for each run: its stamp, its description, its manifest, where its rows are
    .index/rows-….pack        pieces of Parquet: the rows of one family of metrics in a block of runs

A family is a metric's name up to a bracket: all `drift[…]` are one.  A family with more than `HEAVY` rows in a run is
left out and read from the run's folder.  An ended run never changes.  A line counts only while the files of its run
have the stamps they had (time and size, or what an object store says of them); every other run is read from its
folder.  `load` writes the index when enough runs are not in it, block by block; blocks whose runs are all unchanged
are copied.  Where the store may not be written to, readers work without.

An index may come with a store that somebody else wrote.  An index that this user wrote has a code (HMAC) made with a
key: 32 random bytes in a file of the user's cache.  Its lines were checked when they were written.  The lines of any
other index are checked like the files of a run: by their schema, and an id has to be that of the configuration.  If one
line does not fit, the index is not used.  Rows are always checked.
"""

import hashlib
import hmac
import io
import json
import os
import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import polars as pl
from pydantic_core import from_json

from sonde.core.atomic import user_cache
from sonde.core.errors import SondeError
from sonde.core.run_ids import run_id
from sonde.metrics.rows import SCHEMA, empty
from sonde.store import files
from sonde.store.files import JSON_BYTES, Allowance, Place, is_sealed
from sonde.store.folder import refuse_other_recipe
from sonde.store.parquet import read_parquet, refuse_odd_values
from sonde.store.readings import NO_ROWS, HeavyFamilies, RowQuery, RowSlice, row_slices
from sonde.store.run import Run
from sonde.store.schemas import (
    ENDED,
    Checksum,
    IndexContents,
    Manifest,
    PieceOfIndex,
    Trained,
    checksum,
    validate_as,
    validate_json_as,
)

INDEX_FORMAT = 2
INDEX_FOLDER, INDEX_NAME = ".index", "index.json"
INDEX_FILES = re.compile(r"(rows-[0-9a-f]{16}\.pack|runs-[0-9a-f]{16}\.parquet)")
"""The names of the files beside index.json."""
_SIGNED = ("format", "pack", "lines", "blocks")
_UNUSABLE = (pl.exceptions.PolarsError, OSError, SondeError, ValueError, KeyError, TypeError, OverflowError)
RUNS_TO_INDEX = 100  # runs that are not in the index; below that the folders are as quick
_REBUILD = "remove the index, and the next reader writes it anew"
_KEY_BYTES = 32
LINES = pl.Schema(dict.fromkeys(("id", "stamp", "description", "manifest", "heavy"), pl.String) | {"block": pl.Int64})
PIECE = pl.Schema([*SCHEMA.items(), ("place", pl.UInt32)])  # `place`: the position of the row in its block


class RowPlace(NamedTuple):
    """Where the rows of a run are: its block, and the families that are not in it."""

    block: int
    heavy: HeavyFamilies


@dataclass(frozen=True)
class Index:
    """The runs of an index that have not changed since, and where their rows are."""

    root: Place
    pack: str = ""
    lines: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=LINES))
    runs: dict[str, Run] = field(default_factory=dict)
    places: dict[str, RowPlace] = field(default_factory=dict)
    blocks: list[list[PieceOfIndex]] = field(default_factory=list)
    changed: tuple[str, ...] = ()  # runs whose manifest is the one that was indexed, but another file is not
    packed: int = 0  # bytes of the files that the rows come from

    def has(self, run: str, query: RowQuery) -> bool:
        """Whether the rows that are asked for of a run are in the index."""
        return run in self.places and query.avoids(self.places[run].heavy)

    def rows(self, runs: Collection[str], query: RowQuery) -> dict[str, RowSlice]:
        """The rows that are asked for of these runs; runs of a block that is damaged are missing."""
        found: dict[str, RowSlice] = dict.fromkeys(runs, NO_ROWS)
        if query.is_empty or not found:
            return found
        by_block: dict[int, set[str]] = {}
        for run in runs:
            by_block.setdefault(self.places[run].block, set()).add(run)
        allowance = Allowance(self.packed)
        for block, members in sorted(by_block.items()):
            try:
                frame = self._block(block, query)
                allowance.take(frame.height, INDEX_FOLDER)
            except _UNUSABLE:
                for run in members:
                    del found[run]
                continue
            found |= {run: rows for run, rows in row_slices(frame) if run in members}
        return found

    def without(self, runs: Collection[str]) -> "Index":
        """The index without the blocks of these runs."""
        if not runs:
            return self
        self.close()
        blocks = {self.places[run].block for run in runs}
        kept = {run: place for run, place in self.places.items() if place.block not in blocks}
        return replace(
            self,
            lines=self.lines.filter(~pl.col("block").is_in(list(blocks))),
            runs={run: self.runs[run] for run in kept},
            places=kept,
        )

    def copied(self, block: int) -> Iterator[tuple[PieceOfIndex, bytes]]:
        """The pieces of a block with their bytes; an error where one is damaged."""
        for piece in self.blocks[block]:
            yield piece, self._content(piece)

    def _block(self, block: int, query: RowQuery) -> pl.DataFrame:
        frames = []
        for piece in self.blocks[block]:
            if query.includes(piece.family) and (query.layers or not piece.layers):
                frame = read_parquet(self._content(piece), INDEX_FOLDER, _REBUILD)
                if frame.schema != PIECE or frame["run"].null_count() or frame["place"].null_count():
                    raise SondeError("the columns of another version")
                refuse_odd_values(frame, INDEX_FOLDER, _REBUILD)
                frames.append(query.select(frame))
        if len(frames) == 1:
            return frames[0].drop("place")
        return pl.concat(frames).sort("place").drop("place") if frames else empty()

    def _content(self, piece: PieceOfIndex) -> bytes:
        if piece.at + piece.known.bytes > self._size:
            raise SondeError("a piece of the index is not in its pack")
        self._file.seek(piece.at)
        content = self._file.read(piece.known.bytes)
        if checksum(content) != piece.known:
            raise SondeError("a piece of the index is not what was written")
        return content

    @cached_property
    def _size(self) -> int:
        return self._file.seek(0, io.SEEK_END)

    @cached_property
    def _file(self) -> BinaryIO | io.BytesIO:
        path = self.root / INDEX_FOLDER / self.pack
        return path.open("rb") if isinstance(path, Path) else io.BytesIO(path.read_bytes())

    def close(self) -> None:
        """Close the pack, where it was opened."""
        file = self.__dict__.pop("_file", None)
        if file is not None:
            file.close()


def is_due(fresh: int, known: int) -> bool:
    """Whether enough runs are missing from the index to write it again."""
    return fresh >= max(RUNS_TO_INDEX, known // 8)


def read_index(root: Place, present: Mapping[str, str]) -> Index:
    """Read the index; without runs where there is no index, or it is not what was written."""
    try:
        known, lines = _read_lines(root)
        current = _current(lines, present)
        changed = lines.filter(
            (pl.col("stamp") != _now(present)) & (_of_manifest(pl.col("stamp")) == _of_manifest(_now(present)))
        )
        described, heavies = _values(current["description"]), _values(current["heavy"])
        manifests = _manifests(known, current)
        if not _is_own(known):
            _check_lines(current, described, manifests, heavies, len(known.blocks))
        lined = zip(current["id"], described, manifests, strict=True)
        runs = {id: Run(root / id, description, manifest) for id, description, manifest in lined}
        placed = zip(current["id"], current["block"], heavies, strict=True)
        places = {id: RowPlace(block, tuple(heavy)) for id, block, heavy in placed}
    except _UNUSABLE:
        return Index(root)
    packed = sum(map(bytes_of_rows, present.values()))
    return Index(root, known.pack, current, runs, places, known.blocks, tuple(changed["id"]), packed)


def indexed_manifests(root: Place, present: Mapping[str, str]) -> dict[str, Manifest]:
    """Read the manifests of the indexed runs that have not changed since."""
    try:
        known, lines = _read_lines(root)
        current = _current(lines, present)
        return dict(zip(current["id"], _manifests(known, current), strict=True))
    except _UNUSABLE:
        return {}


def refuse_damaged_index(root: Place) -> None:
    """Raise where a byte of the index is not the one that was written."""
    known, _ = _read_lines(root)
    whole = Index(root, known.pack, blocks=known.blocks)
    try:
        for block in range(len(whole.blocks)):
            for _ in whole.copied(block):
                pass
    finally:
        whole.close()


def bytes_of_rows(stamp: str) -> int:
    """The size of `metrics.parquet`, as the stamp of a run has it."""
    size = stamp.rpartition("|")[2].rpartition("-")[2]
    return int(size) if size.isdecimal() else 0


def _check_lines(
    current: pl.DataFrame, described: list[Any], manifests: list[Manifest], heavies: list[Any], blocks: int
) -> None:
    """Raise unless the lines are of trained runs that have ended, each under the id of its configuration."""
    validate_as(list[Trained], described, INDEX_FOLDER, _REBUILD)
    for id, description, manifest, block, heavy in zip(
        current["id"], described, manifests, current["block"], heavies, strict=True
    ):
        fits = description["id"] == id == run_id(description["config"]) and 0 <= block < max(blocks, 1)
        if not fits or manifest.state not in ENDED or not all(isinstance(one, str) for one in heavy):
            raise SondeError("a line of the index is not what was written")
        refuse_other_recipe(description, INDEX_FOLDER, _REBUILD)


def _read_lines(root: Place) -> tuple[IndexContents, pl.DataFrame]:
    """What index.json says, and the lines; an error where either is not what was written."""
    folder = root / INDEX_FOLDER
    files.refuse_link(folder)
    content = files.read(folder / INDEX_NAME, 4 * JSON_BYTES)
    if not is_sealed(content):
        raise SondeError("the index is not what was written")
    known = validate_as(IndexContents, from_json(content), INDEX_FOLDER, _REBUILD)
    if known.format != INDEX_FORMAT:
        raise SondeError("an index of another version")
    described = files.read(folder / known.lines.file)
    if checksum(described) != known.lines.known:
        raise SondeError("the lines of the index are not what was written")
    lines = read_parquet(described, INDEX_FOLDER, _REBUILD)
    if lines.schema != LINES or any(lines[name].null_count() for name in LINES):
        raise pl.exceptions.SchemaError("the columns of another version")
    return known, lines


def _now(present: Mapping[str, str]) -> pl.Expr:
    return pl.col("id").replace_strict(present, default=None, return_dtype=pl.String)


def _of_manifest(stamp: pl.Expr) -> pl.Expr:
    return stamp.str.split("|").list.first()


def _current(lines: pl.DataFrame, present: Mapping[str, str]) -> pl.DataFrame:
    """The lines of runs whose files are those that were indexed."""
    return lines.filter(pl.col("stamp") == _now(present))


def _values(texts: pl.Series) -> list[Any]:
    """The values of many JSON texts, parsed at once."""
    values: list[Any] = from_json(f"[{','.join(texts)}]")
    return values


def _manifests(known: IndexContents, lines: pl.DataFrame) -> list[Manifest]:
    if not _is_own(known):
        return validate_json_as(list[Manifest], f"[{','.join(lines['manifest'])}]", INDEX_FOLDER, _REBUILD)
    found = _values(lines["manifest"])
    for one in found:
        if one["checksums"] is not None:
            one["checksums"] = {name: Checksum(**value) for name, value in one["checksums"].items()}
    return [Manifest(**one) for one in found]


# ── whether this user wrote it ──────────────────────────────────────────────────────────────────────
def own_code(known: Mapping[str, Any]) -> str:
    """The code of an index that this user writes, over all it says; empty where no key can be kept."""
    signed = json.dumps({name: known[name] for name in _SIGNED}, sort_keys=True).encode()
    key = _key(user_cache("index.key"))
    return "" if key is None else hmac.new(key, signed, hashlib.sha256).hexdigest()


def _is_own(known: IndexContents) -> bool:
    return known.own != "" and hmac.compare_digest(known.own.encode(), own_code(asdict(known)).encode())


@cache
def _key(path: Path) -> bytes | None:
    """The user's key; the first caller makes it."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
            os.write(file, secrets.token_bytes(_KEY_BYTES))
            os.close(file)
        key = path.read_bytes()
        return key if len(key) == _KEY_BYTES else None
    return None
