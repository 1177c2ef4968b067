"""Write a new index: the runs of the old one, and ended runs as they are read."""

import hashlib
import io
import json
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import polars as pl

from sonde.core.atomic import ASIDE, aside_mark, remove_stale
from sonde.core.errors import SondeError
from sonde.metrics import family_of
from sonde.store import files
from sonde.store.files import Place, seal
from sonde.store.folder import as_tree
from sonde.store.index import INDEX_FILES, INDEX_FOLDER, INDEX_FORMAT, INDEX_NAME, LINES, PIECE, Index, is_due, own_code
from sonde.store.readings import HeavyFamilies, RowQuery, RowSlice, row_slices
from sonde.store.run import Run
from sonde.store.schemas import PieceOfIndex, checksum

HEAVY = 2_000  # rows of a family in one run
ROWS_A_BLOCK = 1_000_000  # rows of a block: what is held in memory while the index is written
_KEYS = (
    pl.col("metric").str.split("[").list.first().alias("family"),
    pl.col("layer").is_not_null().alias("layers"),
)


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


class IndexWriter:
    """Writes a new index: the runs of the old one, and runs as they are read, a block at a time."""

    def __init__(self, old: Index, query: RowQuery) -> None:
        self.old, self.query = old, query
        self.found: dict[str, RowSlice] = {}  # the rows that are asked for, of the runs that were added
        self._lines: dict[str, tuple[str, str, str, str, str, int]] = {}  # by run, in the order of LINES
        self._blocks: list[list[PieceOfIndex]] = []
        self._waiting: list[pl.DataFrame] = []
        self._rows = 0
        self._end = 0
        self._target: BinaryIO | io.BytesIO | None = None
        self._failed = False
        self._mark = aside_mark()

    def add(self, run: Run, stamp: str, rows: pl.DataFrame) -> bool:
        """Add an ended run that was read from its folder.

        Return whether the rows that are asked for will be in `found`.
        """
        rows, heavy = light(rows)
        texts = (json.dumps(run.description), json.dumps(as_tree(run.manifest)), json.dumps(heavy))
        self._lines[run.id] = (run.id, stamp, *texts, len(self._blocks))
        self._waiting.append(rows)
        self._rows += rows.height
        if self._rows >= ROWS_A_BLOCK:
            self._flush()
        return self.query.avoids(heavy)

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pl.concat(self._waiting, rechunk=True)
        self._waiting, self._rows = [], 0
        if not self.query.is_empty:
            self.found |= row_slices(self.query.select(rows))
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

    def _append(self, family: str, layers: bool, content: bytes) -> PieceOfIndex:
        piece = PieceOfIndex(family=family, layers=layers, at=self._end, known=checksum(content))
        self._open().write(content)
        self._end += len(content)
        return piece

    def _open(self) -> BinaryIO | io.BytesIO:
        if self._target is None:
            path = self._aside()
            folder = files.inner_folder(self.old.root / INDEX_FOLDER)
            if isinstance(folder, Path):
                remove_stale(folder)
            self._target = path.open("wb") if isinstance(path, Path) else io.BytesIO()
        return self._target

    def _aside(self) -> Place:
        return self.old.root / INDEX_FOLDER / f"{ASIDE}{self._mark}rows.pack"

    def finish(self) -> None:
        """Make the new index visible, if enough runs are new and the store may be written to."""
        due = is_due(len(self._lines), self.old.lines.height)
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
        """Remove what was written so far."""
        self._failed = True
        if self._target is not None:
            self._target.close()
            aside = self._aside()
            if isinstance(aside, Path):
                with suppress(OSError):
                    aside.unlink(missing_ok=True)

    def _write(self) -> None:
        table = pl.concat([self._copy_old_blocks(), pl.DataFrame(list(self._lines.values()), LINES, orient="row")])
        table = table.sort("id")
        described = _parquet(table)
        mark = hashlib.sha256(described).hexdigest()[:16]
        folder = self.old.root / INDEX_FOLDER
        pack, names = f"rows-{mark}.pack", f"runs-{mark}.parquet"
        self._put(folder / pack)
        files.write(folder / names, described)
        known = {
            "format": INDEX_FORMAT,
            "pack": pack,
            "lines": {"file": names, "known": vars(checksum(described))},
            "blocks": [[{**vars(piece), "known": vars(piece.known)} for piece in block] for block in self._blocks],
        }
        files.write(folder / INDEX_NAME, seal(known | {"own": own_code(known)}))
        for file in folder.iterdir():
            if file.name not in (pack, names) and INDEX_FILES.fullmatch(file.name):
                file.unlink(missing_ok=True)

    def _put(self, path: Place) -> None:
        """Move the complete pack into place."""
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

    def _copy_old_blocks(self) -> pl.DataFrame:
        """Append the blocks of the old index whose runs are all unchanged and not read again; return their lines."""
        kept = [pl.DataFrame(schema=LINES)]
        for (block,), lines in sorted(self.old.lines.partition_by("block", as_dict=True).items()):
            if any(id in self._lines for id in lines["id"]):
                continue
            try:
                pieces = [
                    self._append(piece.family, piece.layers, content) for piece, content in self.old.copied(block)
                ]
            except (SondeError, OSError):
                continue
            kept.append(lines.with_columns(block=pl.lit(len(self._blocks), pl.Int64)))
            self._blocks.append(pieces)
        return pl.concat(kept)


def _parquet(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", compression_level=1)
    return buffer.getvalue()
