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

import hashlib
import io
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl
from pydantic_core import from_json

from sonde.atomic import ASIDE, aside_mark, sweep
from sonde.errors import SondeError
from sonde.rows import SCHEMA, empty
from sonde.store import files
from sonde.store.checksums import Checksum, checksum, is_sealed, seal
from sonde.store.place import Place
from sonde.store.remote import Remote, stamp
from sonde.store.run import Manifest, as_tree

FORMAT = 2
FOLDER, NAME = ".index", "index.json"
STAMPED = ("manifest.json", "run.json", "metrics.parquet")
ENOUGH = 100  # runs that are not in the index; below that the folders are as quick
HEAVY = 2_000  # rows of a family in one run
BLOCK = 1_000_000  # rows of a block: what is held in memory while the index is written
CHUNK = 100_000  # rows that lie together in what is read
LINES = pl.Schema(
    dict.fromkeys(("id", "stamp", "description", "manifest", "heavy"), pl.String) | {"block": pl.Int64}
)
_KEYS = (
    pl.col("metric").str.split("[").list.first().alias("family"),
    pl.col("layer").is_not_null().alias("layers"),
)
PIECE = pl.Schema([*SCHEMA.items(), ("place", pl.UInt32)])  # a row's place in its block


Heavy = tuple[str, ...]
"""Families that the index leaves out of a run."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which rows a reader asks for.  `where` sees the rows of one run and metric, maybe among others: windows are over
    both."""

    metrics: Collection[str] | None = None  # None: all
    layers: bool = True  # whether measurements of single layers are wanted, beside those of the whole network
    where: pl.Expr | None = None

    @property
    def nothing(self) -> bool:
        return self.metrics is not None and not self.metrics

    def of(self, rows: pl.DataFrame) -> pl.DataFrame:
        asked = [] if self.metrics is None else [pl.col("metric").is_in(list(self.metrics))]
        if not self.layers:
            asked.append(pl.col("layer").is_null())
        rows = rows.filter(*asked) if asked else rows
        return rows if self.where is None else rows.filter(self.where)

    def has(self, family: str) -> bool:
        """Whether some of the rows may be of the family."""
        return self.metrics is None or any(family_of(metric) == family for metric in self.metrics)

    def avoids(self, heavy: Heavy) -> bool:
        """Whether none of the rows is of these families."""
        return self.nothing or not any(map(self.has, heavy))


@dataclass(frozen=True)
class Stretch:
    """The rows of one run, in a frame that may hold others' too."""

    frame: pl.DataFrame
    first: int
    count: int


NO_ROWS = Stretch(empty(), 0, 0)


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


def stretches(frame: pl.DataFrame) -> Iterator[tuple[str, Stretch]]:
    """Every run of a frame with its rows, which lie together."""
    first = 0
    for count, run in frame["run"].rle().struct.unnest().iter_rows():
        yield run, Stretch(frame, first, count)
        first += count


def family_of(metric: str) -> str:
    return metric.partition("[")[0]


def stamps(root: Place) -> dict[str, str] | None:
    """Every run of a store with the stamps of its files, in order of their ids; None where there is no store."""
    if isinstance(root, Remote):
        return _remote_stamps(root)
    found = {}
    with os.scandir(str(root)) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_dir():
                found[entry.name] = "|".join(_stamp(f"{entry.path}/{name}") for name in STAMPED)
    return dict(sorted(found.items()))


def _stamp(path: str) -> str:
    try:
        known = os.stat(path)
    except OSError:
        return ""
    return f"{known.st_mtime_ns}-{known.st_size}"


def _remote_stamps(root: Remote) -> dict[str, str] | None:
    objects = root.walk()
    if not objects:
        return None
    found: dict[str, dict[str, str]] = {}
    for name, about in sorted(objects.items()):
        run, _, file = name.partition("/")
        if file in STAMPED and not run.startswith("."):
            found.setdefault(run, {})[file] = stamp(about)
    return {
        run: "|".join(known.get(name, "") for name in STAMPED)
        for run, known in found.items()
        if "manifest.json" in known
    }


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


def light(rows: pl.DataFrame) -> tuple[pl.DataFrame, Heavy]:
    """The rows of a run that the index takes, and the families that it leaves out."""
    if rows.height <= HEAVY:
        return rows, ()
    names, places = _places(rows["metric"])
    families = [family_of(name) for name in names]
    counts: dict[str, int] = {}
    for family, count in zip(families, np.bincount(places, minlength=len(names)).tolist(), strict=True):
        counts[family] = counts.get(family, 0) + count
    heavy = tuple(family for family, count in counts.items() if count > HEAVY)
    if not heavy:
        return rows, ()
    kept = np.array([family not in heavy for family in families])
    return rows.filter(pl.Series(kept[places])), heavy


_names: list[str] = []  # of the metrics of the last run: the next one often has the same


def _places(metrics: pl.Series) -> tuple[list[str], Any]:
    """Names that the metrics are among, and of each its place there."""
    global _names
    try:
        places = metrics.cast(pl.Enum(_names))
    except pl.exceptions.InvalidOperationError:
        _names = metrics.unique().to_list()
        places = metrics.cast(pl.Enum(_names))
    return _names, places.to_physical().to_numpy()


def is_due(fresh: int, known: int) -> bool:
    """Whether so many runs are not in the index that it is worth writing anew."""
    return fresh >= max(ENOUGH, known // 8)


class Writer:
    """A new index: what the old one has, and runs as they are read, a block at a time."""

    def __init__(self, old: Index, wanted: Wanted) -> None:
        self.old, self.wanted = old, wanted
        self.fresh: dict[str, Line] = {}
        self.found: dict[str, Stretch] = {}  # the wanted rows of the runs it was given
        self._blocks: list[list[Piece]] = []
        self._waiting: list[pl.DataFrame] = []
        self._rows = 0
        self._end = 0
        self._target: BinaryIO | io.BytesIO | None = None
        self._failed = False
        self._mark = aside_mark()

    def add(
        self, run: str, stamp: str, description: dict[str, Any], manifest: Manifest, rows: pl.DataFrame
    ) -> bool:
        """Take an ended run that was read from its folder; whether the rows wanted of it will be in `found`."""
        rows, heavy = light(rows)
        self.fresh[run] = Line(stamp, description, manifest, len(self._blocks), heavy)
        self._waiting.append(rows)
        self._rows += rows.height
        if self._rows >= BLOCK:
            self._flush()
        return self.wanted.avoids(heavy)

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pl.concat(self._waiting, rechunk=True)
        self._waiting, self._rows = [], 0
        if not self.wanted.nothing:
            self.found |= stretches(self.wanted.of(rows))
        if self._failed:
            return
        rows = rows.with_row_index("place").select(PIECE.names())
        groups = rows.group_by(*_KEYS, maintain_order=True)
        try:
            self._blocks.append(
                [self._append(str(name), bool(layers), _parquet(piece)) for (name, layers), piece in groups]
            )
        except (SondeError, OSError):
            self._failed = True

    def _append(self, family: str, layers: bool, content: bytes) -> Piece:
        piece = Piece(family, layers, self._end, checksum(content))
        self._open().write(content)
        self._end += len(content)
        return piece

    def _open(self) -> BinaryIO | io.BytesIO:
        if self._target is None:
            path = self._aside()
            folder = files.make_folder(self.old.root / FOLDER)
            if isinstance(folder, Path):
                sweep(folder)
            self._target = path.open("wb") if isinstance(path, Path) else io.BytesIO()
        return self._target

    def _aside(self) -> Place:
        return self.old.root / FOLDER / f"{ASIDE}{self._mark}rows.pack"

    def finish(self) -> None:
        """Make the new index visible, if it is worth it and the store may be written to."""
        due = is_due(len(self.fresh), len(self.old.lines))
        self._failed |= not due
        self._flush()
        try:
            if not self._failed:
                self._write()
        except (SondeError, OSError):
            pass
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._failed = True
        if self._target is not None:
            self._target.close()
            aside = self._aside()
            if isinstance(aside, Path):
                with suppress(OSError):
                    aside.unlink(missing_ok=True)

    def _write(self) -> None:
        lines = self._with_old_blocks()
        table = pl.DataFrame(
            [
                (
                    id,
                    line.stamp,
                    json.dumps(line.description),
                    json.dumps(as_tree(line.manifest)),
                    json.dumps(line.heavy),
                    line.block,
                )
                for id, line in sorted(lines.items())
            ],
            schema=LINES,
            orient="row",
        )
        described = _parquet(table)
        mark = hashlib.sha256(described).hexdigest()[:16]
        folder = self.old.root / FOLDER
        pack, names = f"rows-{mark}.pack", f"runs-{mark}.parquet"
        self._put(folder / pack)
        files.write(folder / names, described)
        known = {
            "format": FORMAT,
            "pack": pack,
            "lines": {"file": names, "known": vars(checksum(described))},
            "blocks": [
                [{**vars(piece), "known": vars(piece.known)} for piece in block] for block in self._blocks
            ],
        }
        files.write(folder / NAME, seal(known))
        for file in folder.iterdir():
            if file.name not in (NAME, pack, names) and not file.name.startswith(ASIDE):
                file.unlink(missing_ok=True)

    def _put(self, path: Place) -> None:
        """The pack in its place, whole."""
        target = self._open()
        if isinstance(path, Path):
            target.flush()
            os.fsync(target.fileno())
            aside = self._aside()
            assert isinstance(aside, Path)
            aside.replace(path)
        else:
            assert isinstance(target, io.BytesIO)
            files.write(path, target.getvalue())

    def _with_old_blocks(self) -> dict[str, Line]:
        """Blocks of the old index whose runs are all as they were and not read anew, behind the new ones."""
        lines = dict(self.fresh)
        of_block: dict[int, dict[str, Line]] = {}
        for id, line in self.old.lines.items():
            of_block.setdefault(line.block, {})[id] = line
        for block, members in sorted(of_block.items()):
            if any(id in self.fresh for id in members):
                continue
            try:
                pieces = [
                    self._append(piece.family, piece.layers, content)
                    for piece, content in self.old.taken_over(block)
                ]
            except (SondeError, OSError):
                continue
            lines |= {id: replace(line, block=len(self._blocks)) for id, line in members.items()}
            self._blocks.append(pieces)
        return lines


def _parquet(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", compression_level=1)
    return buffer.getvalue()
