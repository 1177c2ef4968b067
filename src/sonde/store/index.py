"""Ended runs once more, side by side, so that many of them are read like one and only as far as is asked for.

    .index/index.json         what follows: names, sizes and checksums, and its own
    .index/runs-….parquet     a line for each run: its stamp, its description, its manifest, where its rows are
    .index/rows-….pack        pieces of Parquet: of a block of runs, the rows of one family of metrics

A family is a metric's name up to a bracket: all `drift[…]` are one.  Of a run, a family of more rows than `HEAVY`
is left out and read from its folder.  An ended run never changes.  A run's line counts only while its files have the
stamps they had (time and size, or what an object store says of them); every other run is read from its folder.
Readers write the index when enough runs are not in it, block by block; blocks whose runs are all as they were are
taken over as they are.  Where readers may not write, they go without.
"""

import io
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl
from pydantic_core import from_json

from sonde.errors import SondeError
from sonde.rows import SCHEMA, empty
from sonde.store.checksums import Checksum, checksum, is_sealed
from sonde.store.place import Place
from sonde.store.run import Manifest
from sonde.store.stretches import NO_ROWS, Stretch, stretches
from sonde.store.wanted import Heavy, Wanted

FORMAT = 2
FOLDER, NAME = ".index", "index.json"
LINES = pl.Schema(
    dict.fromkeys(("id", "stamp", "description", "manifest", "heavy"), pl.String) | {"block": pl.Int64}
)
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
        for block, members in sorted(by_block.items()):
            try:
                frame = self._block(block, wanted)
            except (pl.exceptions.PolarsError, SondeError, OSError):
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
        return replace(
            self, lines={run: line for run, line in self.lines.items() if line.block not in blocks}
        )

    def taken_over(self, block: int) -> Iterator[tuple[Piece, bytes]]:
        """The pieces of a block as they are; an error where one is damaged."""
        for piece in self.blocks[block]:
            yield piece, self._content(piece)

    def _block(self, block: int, wanted: Wanted) -> pl.DataFrame:
        frames = []
        for piece in self.blocks[block]:
            if wanted.has(piece.family) and (wanted.layers or not piece.layers):
                frame = pl.read_parquet(io.BytesIO(self._content(piece)))
                if frame.schema != PIECE:
                    raise SondeError("the columns of another version")
                frames.append(wanted.of(frame))
        if len(frames) == 1:
            return frames[0].drop("place")
        return pl.concat(frames).sort("place").drop("place") if frames else empty()

    def _content(self, piece: Piece) -> bytes:
        self._file.seek(piece.at)
        content = self._file.read(piece.known.bytes)
        if checksum(content) != piece.known:
            raise SondeError("a piece of the index is not what was written")
        return content

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
    except (pl.exceptions.PolarsError, OSError, SondeError, ValueError, KeyError, TypeError):
        return Index(root)
    current = _current(lines, present)
    changed = lines.filter(
        (pl.col("stamp") != _now(present)) & (_of_manifest(pl.col("stamp")) == _of_manifest(_now(present)))
    )
    about, states, heavies = (_values(current[name]) for name in ("description", "manifest", "heavy"))
    found = {
        id: Line(stamp, description, _manifest(manifest), block, tuple(heavy))
        for id, stamp, description, manifest, block, heavy in zip(
            current["id"], current["stamp"], about, states, current["block"], heavies, strict=True
        )
    }
    return Index(root, known["pack"], found, _blocks(known), tuple(changed["id"]))


def _blocks(known: Mapping[str, Any]) -> list[list[Piece]]:
    return [
        [Piece(one["family"], one["layers"], one["at"], Checksum(**one["known"])) for one in block]
        for block in known["blocks"]
    ]


def refuse_damage(root: Place) -> None:
    """An error where a byte of the index is not the one that was written."""
    known, _ = _lines(root)
    whole = Index(root, known["pack"], {}, _blocks(known))
    try:
        for block in range(len(whole.blocks)):
            for _ in whole.taken_over(block):
                pass
    finally:
        whole.close()


def manifests(root: Place, present: Mapping[str, str]) -> dict[str, Manifest]:
    """How the runs ended that the index knows as they are now."""
    try:
        current = _current(_lines(root)[1], present)
    except (pl.exceptions.PolarsError, OSError, SondeError, ValueError, KeyError, TypeError):
        return {}
    states = _values(current["manifest"])
    return {id: _manifest(manifest) for id, manifest in zip(current["id"], states, strict=True)}


def _lines(root: Place) -> tuple[dict[str, Any], pl.DataFrame]:
    """What the index says of itself, and its lines; an error where either is not what was written."""
    folder = root / FOLDER
    content = (folder / NAME).read_bytes()
    if not is_sealed(content):
        raise SondeError("the index is not what was written")
    known = from_json(content)
    if known["format"] != FORMAT:
        raise SondeError("an index of another version")
    described = (folder / known["lines"]["file"]).read_bytes()
    if checksum(described) != Checksum(**known["lines"]["known"]):
        raise SondeError("the lines of the index are not what was written")
    lines = pl.read_parquet(io.BytesIO(described))
    if lines.schema != LINES:
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
