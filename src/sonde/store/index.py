"""The index: a copy of ended runs in few files.  Many runs are read from it at once, and only the rows asked for.

    .index/index.json         names, sizes and checksums of the other files, and its own checksum
    .index/runs-….parquet     a line for each run: its stamp, its description, its manifest, where its rows are
    .index/rows-….pack        a block of runs: pieces of Parquet, each with the rows of one family of metrics

A family is a metric's name up to a bracket: all `drift[…]` are one.  A family with more than `HEAVY` rows in a run is
left out and read from the run's folder.  An ended run never changes.  A line counts only while the files of its run
have the stamps they had (time and size, or what an object store says of them); every other run is read from its
folder.  `load` adds runs when enough are missing: they become new blocks, and older blocks stay as they are.  Where the
store may not be written to, readers work without.

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
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from pydantic_core import from_json

from sonde.core.errors import SondeError
from sonde.core.run_ids import run_id
from sonde.metrics import family_of
from sonde.metrics.rows import SCHEMA, empty
from sonde.store import files
from sonde.store.files import JSON_BYTES, Allowance, Place, is_sealed, remove_stale, seal, user_cache
from sonde.store.folder import as_tree, refuse_other_recipe
from sonde.store.parquet import read_parquet, refuse_odd_values
from sonde.store.readings import NO_ROWS, HeavyFamilies, RowQuery, RowSlice, row_slices
from sonde.store.run import Run
from sonde.store.schemas import (
    ENDED,
    BlockOfIndex,
    Checksum,
    IndexContents,
    LinesOfIndex,
    Manifest,
    PieceOfIndex,
    Trained,
    checksum,
    validate_as,
    validate_json_as,
)

INDEX_FORMAT = 3
INDEX_FOLDER, INDEX_NAME = ".index", "index.json"
INDEX_FILES = re.compile(r"(rows-[0-9a-f]{16}\.pack|runs-[0-9a-f]{16}\.parquet)")
"""The names of the files beside index.json."""
_SIGNED = ("format", "lines", "blocks")
_UNUSABLE = (pl.exceptions.PolarsError, OSError, SondeError, ValueError, KeyError, TypeError, OverflowError)
RUNS_TO_INDEX = 100  # runs that are not in the index; below that the folders are as quick
HEAVY = 2_000  # rows of a family in one run
ROWS_A_BLOCK = 1_000_000  # rows of a block: what is held in memory while the index is written
_REBUILD = "remove the index, and the next reader writes it anew"
_KEY_BYTES = 32
LINES = pl.Schema(dict.fromkeys(("id", "stamp", "description", "manifest", "heavy"), pl.String) | {"block": pl.Int64})
PIECE = pl.Schema([*SCHEMA.items(), ("place", pl.UInt32)])  # `place`: the position of the row in its block
_KEYS = (
    pl.col("metric").str.split("[").list.first().alias("family"),
    pl.col("layer").is_not_null().alias("layers"),
)


class RowPlace(NamedTuple):
    """Where the rows of a run are: its block, and the families that are not in it."""

    block: int
    heavy: HeavyFamilies


@dataclass(frozen=True)
class Index:
    """The runs of an index that have not changed since, and where their rows are."""

    root: Place
    lines: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=LINES))
    runs: dict[str, Run] = field(default_factory=dict)
    places: dict[str, RowPlace] = field(default_factory=dict)
    blocks: list[BlockOfIndex] = field(default_factory=list)
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
        written = sum(piece.known.bytes for block in self.blocks for piece in block.pieces)
        allowance = Allowance(max(self.packed, written))
        for block, members in sorted(by_block.items()):
            try:
                frame = self._block(self.blocks[block], query)
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
        blocks = {self.places[run].block for run in runs}
        kept = {run: place for run, place in self.places.items() if place.block not in blocks}
        return replace(
            self,
            lines=self.lines.filter(~pl.col("block").is_in(list(blocks))),
            runs={run: self.runs[run] for run in kept},
            places=kept,
        )

    def _block(self, block: BlockOfIndex, query: RowQuery) -> pl.DataFrame:
        asked = [one for one in block.pieces if query.includes(one.family) and (query.layers or not one.layers)]
        frames = []
        for content in _contents(self.root, block, asked):
            frame = read_parquet(content, INDEX_FOLDER, _REBUILD)
            if frame.schema != PIECE or frame["run"].null_count() or frame["place"].null_count():
                raise SondeError("the columns of another version")
            refuse_odd_values(frame, INDEX_FOLDER, _REBUILD)
            frames.append(query.select(frame))
        if len(frames) == 1:
            return frames[0].drop("place")
        return pl.concat(frames).sort("place").drop("place") if frames else empty()


def _contents(root: Place, block: BlockOfIndex, pieces: Collection[PieceOfIndex]) -> Iterator[bytes]:
    """The bytes of these pieces of a block; an error where one is damaged."""
    if not pieces:
        return
    path = root / INDEX_FOLDER / block.file
    with files.opened(path) if isinstance(path, Path) else io.BytesIO(path.read_bytes()) as file:
        size = file.seek(0, io.SEEK_END)
        for piece in pieces:
            if piece.at + piece.known.bytes > size:
                raise SondeError("a piece of the index is not in its pack")
            file.seek(piece.at)
            content = file.read(piece.known.bytes)
            if checksum(content) != piece.known:
                raise SondeError("a piece of the index is not what was written")
            yield content


def is_due(fresh: int, known: int) -> bool:
    """Whether enough runs are missing from the index to write it again."""
    return fresh >= max(RUNS_TO_INDEX, known // 8)


def read_index(root: Place, present: Mapping[str, str]) -> Index:
    """Read the index; without runs where there is no index, or it is not what was written."""
    packed = sum(map(bytes_of_rows, present.values()))
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
        return Index(root, packed=packed)
    return Index(root, current, runs, places, known.blocks, tuple(changed["id"]), packed)


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
    for block in known.blocks:
        for _ in _contents(root, block, block.pieces):
            pass


def bytes_of_rows(stamp: str) -> int:
    """The size of `metrics.parquet`, as the stamp of a run has it."""
    _, dash, size = stamp.rpartition("|")[2].rpartition("-")
    return int(size) if dash and size.isdecimal() else 0  # stamps of an object store have no size


def _check_lines(
    current: pl.DataFrame, described: list[Any], manifests: list[Manifest], heavies: list[Any], blocks: int
) -> None:
    """Raise unless the lines are of trained runs that have ended, each under the id of its configuration."""
    validate_as(list[Trained], described, INDEX_FOLDER, _REBUILD)
    for id, description, manifest, block, heavy in zip(
        current["id"], described, manifests, current["block"], heavies, strict=True
    ):
        fits = description["id"] == id == run_id(description["config"]) and 0 <= block < blocks
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
    tree = from_json(content)
    if not isinstance(tree, dict) or tree.get("format") != INDEX_FORMAT:
        raise SondeError("it was written by another version of Sonde")
    known = validate_as(IndexContents, tree, INDEX_FOLDER, _REBUILD)
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


# ── write ────────────────────────────────────────────────────────────────────────────────────────────
def light(rows: pl.DataFrame) -> tuple[pl.DataFrame, HeavyFamilies]:
    """The rows of a run that go into the index, and the families that are left out."""
    if rows.height <= HEAVY:
        return rows, ()
    known = rows["metric"].value_counts()
    counts: Counter[str] = Counter()
    for metric, count in known.iter_rows():
        counts[family_of(metric)] += count
    heavy = tuple(sorted(family for family, count in counts.items() if count > HEAVY))
    if not heavy:
        return rows, ()
    return rows.filter(~pl.col("metric").is_in([name for name in known["metric"] if family_of(name) in heavy])), heavy


def write_index(old: Index, present: Mapping[str, str], added: Iterable[tuple[Run, pl.DataFrame]]) -> Index:
    """Add ended runs with their rows; return the new index, or the old one where the store may not be written to.

    `present` has the stamp of every run.  The rows of a block are held in memory, and no others.
    """
    written: list[Place] = []
    try:
        folder = files.make_inner_folder(old.root / INDEX_FOLDER)
        if isinstance(folder, Path):
            if not os.access(folder, os.W_OK):
                return old
            remove_stale(folder)
        kept = old.lines["block"].unique().sort().to_list()
        blocks = [old.blocks[block] for block in kept]
        lines = [old.lines.with_columns(pl.col("block").replace_strict(kept, range(len(kept)), return_dtype=pl.Int64))]
        runs, places = dict(old.runs), {run: RowPlace(kept.index(at), heavy) for run, (at, heavy) in old.places.items()}
        for members in _blocks_of(added):
            texts = []
            for run, _, heavy in members:
                runs[run.id], places[run.id] = run, RowPlace(len(blocks), heavy)
                known = (run.description, as_tree(run.manifest), heavy)
                texts.append((run.id, present[run.id], *map(json.dumps, known), len(blocks)))
            lines.append(pl.DataFrame(texts, LINES, orient="row"))
            blocks.append(_write_block(folder, pl.concat([rows for _, rows, _ in members], rechunk=True)))
            written.append(folder / blocks[-1].file)
        new = replace(old, lines=pl.concat(lines).sort("id"), runs=runs, places=places, blocks=blocks)
        _write_lines(folder, new)
    except (SondeError, OSError):
        with suppress(SondeError, OSError):
            named = _files_of(old.root)
            for file in written:
                if file.name not in named:
                    file.unlink(missing_ok=True)
        return old
    return new


def _files_of(root: Place) -> set[str]:
    """The files that index.json names; none where there is no usable index."""
    try:
        known, _ = _read_lines(root)
    except _UNUSABLE:
        return set()
    return {known.lines.file, *(block.file for block in known.blocks)}


_Member = tuple[Run, pl.DataFrame, HeavyFamilies]


def _blocks_of(added: Iterable[tuple[Run, pl.DataFrame]]) -> Iterator[list[_Member]]:
    """The runs, as many at a time as have the rows of a block."""
    members: list[_Member] = []
    height = 0
    for run, rows in added:
        members.append((run, *light(rows)))
        height += members[-1][1].height
        if height >= ROWS_A_BLOCK:
            yield members
            members, height = [], 0
    if members:
        yield members


def _write_block(folder: Place, rows: pl.DataFrame) -> BlockOfIndex:
    rows = rows.with_row_index("place").select(PIECE.names())
    pieces, packed = list[PieceOfIndex](), b""
    for (family, layers), piece in rows.group_by(*_KEYS, maintain_order=True):
        content = _parquet(piece)
        pieces.append(PieceOfIndex(family=str(family), layers=bool(layers), at=len(packed), known=checksum(content)))
        packed += content
    file = f"rows-{checksum(packed).sha256[:16]}.pack"
    files.write(folder / file, packed)
    return BlockOfIndex(file=file, pieces=pieces)


def _write_lines(folder: Place, index: Index) -> None:
    """Write the lines, then index.json, which makes all visible; remove the files of an older index."""
    content = _parquet(index.lines)
    lines = LinesOfIndex(file=f"runs-{checksum(content).sha256[:16]}.parquet", known=checksum(content))
    files.write(folder / lines.file, content)
    named = {lines.file, *(block.file for block in index.blocks)}
    if not named <= {file.name for file in folder.iterdir()}:
        raise SondeError("another reader wrote the index meanwhile, and removed what its own does not name")
    known = {"format": INDEX_FORMAT, "lines": asdict(lines), "blocks": [asdict(block) for block in index.blocks]}
    files.write(folder / INDEX_NAME, seal(known | {"own": _own_code(known)}))
    for file in folder.iterdir():
        if file.name not in named and INDEX_FILES.fullmatch(file.name):
            file.unlink(missing_ok=True)


def _parquet(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", compression_level=1)
    return buffer.getvalue()


# ── whether this user wrote it ──────────────────────────────────────────────────────────────────────
def _own_code(known: Mapping[str, Any]) -> str:
    """The code of an index that this user writes, over all it says; empty where no key can be kept."""
    signed = json.dumps({name: known[name] for name in _SIGNED}, sort_keys=True).encode()
    key = _read_or_make_key(user_cache("index.key"))
    return "" if key is None else hmac.new(key, signed, hashlib.sha256).hexdigest()


def _is_own(known: IndexContents) -> bool:
    return known.own != "" and hmac.compare_digest(known.own.encode(), _own_code(asdict(known)).encode())


@cache
def _read_or_make_key(path: Path) -> bytes | None:
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
