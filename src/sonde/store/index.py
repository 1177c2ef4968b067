"""Ended runs once more, side by side, so that many of them are read like one and only as far as is asked for.

    .index/index.json         what follows: names, sizes and checksums, and its own
    .index/runs-….parquet     a line for each run: its stamp, its description, its manifest, where its rows are
    .index/rows-….pack        pieces of Parquet: of a block of runs, the rows of one family of metrics

A family is a metric's name up to a bracket: all `drift[…]` are one.  Of a run, a family of more rows than `HEAVY`
is left out and read from its folder.  An ended run never changes.  A run's line counts only while its files have the
stamps they had (time and size, or what an object store says of them); every other run is read from its folder.
Readers write the index when enough runs are not in it, block by block; blocks whose runs are all as they were are
taken over as they are.  Where readers may not write, they go without.

An index may come with a store that somebody else wrote.  Unless this user wrote it (`own_index.py`), its lines are
checked as the files of a run are: by their schema, and an id has to be that of the configuration.  One that does not
fit is not used at all.  Rows are checked in any case.
"""

import io
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl
from pydantic_core import from_json

from sonde.core.errors import SondeError
from sonde.core.run_ids import run_id
from sonde.metrics.rows import SCHEMA, empty
from sonde.store import files
from sonde.store.checksums import Checksum, checksum, is_sealed
from sonde.store.limits import JSON, Allowance
from sonde.store.own_index import is_own
from sonde.store.parquet_rows import read_parquet, refuse_odd_values
from sonde.store.place import Place
from sonde.store.row_query import Heavy, Wanted
from sonde.store.row_slices import NO_ROWS, Stretch, stretches
from sonde.store.run import ENDED, Manifest
from sonde.store.schemas import Contents, Trained, checked, checked_json

FORMAT = 2
FOLDER, NAME = ".index", "index.json"
OURS = re.compile(r"(rows-[0-9a-f]{16}\.pack|runs-[0-9a-f]{16}\.parquet)")
"""How the files beside it are called."""
SIGNED = ("format", "pack", "lines", "blocks")
UNUSABLE = (pl.exceptions.PolarsError, OSError, SondeError, ValueError, KeyError, TypeError, OverflowError)
REBUILD = "remove the index, and the next reader writes it anew"
LINES = pl.Schema(dict.fromkeys(("id", "stamp", "description", "manifest", "heavy"), pl.String) | {"block": pl.Int64})
PIECE = pl.Schema([*SCHEMA.items(), ("place", pl.UInt32)])  # a row's place in its block


@dataclass(frozen=True)
class Line:
    """What the index knows of a run."""

    stamp: str
    description: dict[str, Any]
    manifest: Manifest
    block: int
    heavy: Heavy


@dataclass(frozen=True)
class Piece:
    """The rows of one family in one block, at a place of the pack."""

    family: str
    layers: bool
    at: int
    known: Checksum


@dataclass(frozen=True)
class Index:
    """The runs that an index knows as they are now, and where their rows are."""

    root: Place
    pack: str = ""
    lines: dict[str, Line] = field(default_factory=dict)
    blocks: list[list[Piece]] = field(default_factory=list)
    changed: tuple[str, ...] = ()  # runs whose manifest is the one that was indexed, but another file is not
    packed: int = 0  # bytes of the files that the rows come from

    def has(self, run: str, wanted: Wanted) -> bool:
        """Whether the rows that are wanted of a run are in the index."""
        line = self.lines.get(run)
        return line is not None and wanted.avoids(line.heavy)

    def rows(self, runs: Collection[str], wanted: Wanted) -> dict[str, Stretch]:
        """The wanted rows of these runs; those of a block that is damaged are not among them."""
        found: dict[str, Stretch] = dict.fromkeys(runs, NO_ROWS)
        if wanted.nothing or not found:
            return found
        by_block: dict[int, set[str]] = {}
        for run in runs:
            by_block.setdefault(self.lines[run].block, set()).add(run)
        allowance = Allowance(self.packed)
        for block, members in sorted(by_block.items()):
            try:
                frame = self._block(block, wanted)
                allowance.take(frame.height, FOLDER)
            except UNUSABLE:
                for run in members:
                    del found[run]
                continue
            found |= {run: stretch for run, stretch in stretches(frame) if run in members}
        return found

    def without(self, runs: Collection[str]) -> "Index":
        """What is left when the blocks of these runs are not believed."""
        if not runs:
            return self
        self.close()
        blocks = {self.lines[run].block for run in runs}
        return replace(self, lines={run: line for run, line in self.lines.items() if line.block not in blocks})

    def taken_over(self, block: int) -> Iterator[tuple[Piece, bytes]]:
        """The pieces of a block as they are; an error where one is damaged."""
        for piece in self.blocks[block]:
            yield piece, self._content(piece)

    def _block(self, block: int, wanted: Wanted) -> pl.DataFrame:
        frames = []
        for piece in self.blocks[block]:
            if wanted.has(piece.family) and (wanted.layers or not piece.layers):
                frame = read_parquet(self._content(piece), FOLDER, REBUILD)
                if frame.schema != PIECE or frame["run"].null_count() or frame["place"].null_count():
                    raise SondeError("the columns of another version")
                refuse_odd_values(frame, FOLDER, REBUILD)
                frames.append(wanted.of(frame))
        if len(frames) == 1:
            return frames[0].drop("place")
        return pl.concat(frames).sort("place").drop("place") if frames else empty()

    def _content(self, piece: Piece) -> bytes:
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
        path = self.root / FOLDER / self.pack
        return path.open("rb") if isinstance(path, Path) else io.BytesIO(path.read_bytes())

    def close(self) -> None:
        file = self.__dict__.pop("_file", None)
        if file is not None:
            file.close()


def read(root: Place, present: Mapping[str, str]) -> Index:
    """The runs that the index knows as they are now; none where there is no index or it is not what was written."""
    try:
        known, lines = _lines(root)
        current = _current(lines, present)
        changed = lines.filter(
            (pl.col("stamp") != _now(present)) & (_of_manifest(pl.col("stamp")) == _of_manifest(_now(present)))
        )
        found = _known_lines(current) if _is_own(known) else _checked_lines(current, len(known.blocks))
    except UNUSABLE:
        return Index(root)
    packed = sum(map(bytes_of_rows, present.values()))
    return Index(root, known.pack, found, _blocks(known), tuple(changed["id"]), packed)


def signed(known: Mapping[str, Any]) -> bytes:
    """What of an index its writer vouches for: names, places and checksums of everything else."""
    return json.dumps({key: known[key] for key in SIGNED}, sort_keys=True).encode()


def _is_own(known: Contents) -> bool:
    return is_own(signed(asdict(known)), known.own)


def _known_lines(current: pl.DataFrame) -> dict[str, Line]:
    """The lines of an index that this user wrote from runs that were checked."""
    about, states, heavies = (_values(current[name]) for name in ("description", "manifest", "heavy"))
    return {
        id: Line(stamp, description, _manifest(manifest), block, tuple(heavy))
        for id, stamp, description, manifest, block, heavy in zip(
            current["id"], current["stamp"], about, states, current["block"], heavies, strict=True
        )
    }


def _checked_lines(current: pl.DataFrame, blocks: int) -> dict[str, Line]:
    """The lines as they have to be: of trained runs that have ended, each under the id of its configuration."""
    described, heavies = _values(current["description"]), _values(current["heavy"])
    checked(list[Trained], described, FOLDER, REBUILD)
    states = _manifests(current["manifest"])
    found = {}
    for id, stamp, description, manifest, block, heavy in zip(
        current["id"], current["stamp"], described, states, current["block"], heavies, strict=True
    ):
        fits = description["id"] == id == run_id(description["config"]) and 0 <= block < max(blocks, 1)
        if not fits or manifest.state not in ENDED or not all(isinstance(one, str) for one in heavy):
            raise SondeError("a line of the index is not what was written")
        found[id] = Line(stamp, description, manifest, block, tuple(heavy))
    return found


def bytes_of_rows(stamp: str) -> int:
    """The size of `metrics.parquet`, as the stamp of a run has it."""
    size = stamp.rpartition("|")[2].rpartition("-")[2]
    return int(size) if size.isdecimal() else 0


def _blocks(known: Contents) -> list[list[Piece]]:
    return [[Piece(one.family, one.layers, one.at, one.known) for one in block] for block in known.blocks]


def refuse_damage(root: Place) -> None:
    """An error where a byte of the index is not the one that was written."""
    known, _ = _lines(root)
    whole = Index(root, known.pack, {}, _blocks(known))
    try:
        for block in range(len(whole.blocks)):
            for _ in whole.taken_over(block):
                pass
    finally:
        whole.close()


def manifests(root: Place, present: Mapping[str, str]) -> dict[str, Manifest]:
    """How the runs ended that the index knows as they are now."""
    try:
        known, lines = _lines(root)
        current = _current(lines, present)
        states = current["manifest"]
        found = list(map(_manifest, _values(states))) if _is_own(known) else _manifests(states)
        return dict(zip(current["id"], found, strict=True))
    except UNUSABLE:
        return {}


def _lines(root: Place) -> tuple[Contents, pl.DataFrame]:
    """What the index says of itself, and its lines; an error where either is not what was written."""
    folder = root / FOLDER
    files.refuse_link(folder)
    content = files.read(folder / NAME, 4 * JSON)
    if not is_sealed(content):
        raise SondeError("the index is not what was written")
    known = checked(Contents, from_json(content), FOLDER, REBUILD)
    if known.format != FORMAT:
        raise SondeError("an index of another version")
    described = files.read(folder / known.lines.file)
    if checksum(described) != known.lines.known:
        raise SondeError("the lines of the index are not what was written")
    lines = read_parquet(described, FOLDER, REBUILD)
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
    """What many JSON texts say, parsed at once."""
    values: list[Any] = from_json(f"[{','.join(texts)}]")
    return values


def _manifest(known: dict[str, Any]) -> Manifest:
    if known["checksums"] is not None:
        known["checksums"] = {name: Checksum(**one) for name, one in known["checksums"].items()}
    return Manifest(**known)


def _manifests(texts: pl.Series) -> list[Manifest]:
    return checked_json(list[Manifest], f"[{','.join(texts)}]", FOLDER, REBUILD)
