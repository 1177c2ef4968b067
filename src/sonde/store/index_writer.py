"""Write an index anew: what the old one has, and ended runs as they are read."""

import hashlib
import io
import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl

from sonde.core.atomic import ASIDE, aside_mark, remove_stale
from sonde.core.errors import SondeError
from sonde.metrics import family_of
from sonde.store import files
from sonde.store.checksums import checksum, seal
from sonde.store.index import FOLDER, FORMAT, LINES, NAME, OURS, PIECE, Index, Line, Piece, signed
from sonde.store.own_index import code_of
from sonde.store.place import Place
from sonde.store.row_query import Heavy, Wanted
from sonde.store.row_slices import Stretch, stretches
from sonde.store.run import Manifest, as_tree

ENOUGH = 100  # runs that are not in the index; below that the folders are as quick
HEAVY = 2_000  # rows of a family in one run
BLOCK = 1_000_000  # rows of a block: what is held in memory while the index is written
_KEYS = (
    pl.col("metric").str.split("[").list.first().alias("family"),
    pl.col("layer").is_not_null().alias("layers"),
)


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

    def add(self, run: str, stamp: str, description: dict[str, Any], manifest: Manifest, rows: pl.DataFrame) -> bool:
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
            folder = files.inner_folder(self.old.root / FOLDER)
            if isinstance(folder, Path):
                remove_stale(folder)
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
            "blocks": [[{**vars(piece), "known": vars(piece.known)} for piece in block] for block in self._blocks],
        }
        files.write(folder / NAME, seal(known | {"own": code_of(signed(known))}))
        for file in folder.iterdir():
            if file.name not in (pack, names) and OURS.fullmatch(file.name):
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
                    self._append(piece.family, piece.layers, content) for piece, content in self.old.taken_over(block)
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
