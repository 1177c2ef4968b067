"""Read a store: tidy rows as one DataFrame, and what each run was."""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import polars as pl

from sonde.core.errors import SondeError, tell
from sonde.core.formatting import listed
from sonde.metrics.rows import empty, named
from sonde.store.files import Allowance, Place, place
from sonde.store.folder import read_manifest, run_exists
from sonde.store.index import Index, bytes_of_rows, indexed_manifests, is_due, read_index
from sonde.store.listing import foreign_folders, stamps, stamps_of, why_incomplete
from sonde.store.readings import NO_ROWS, RowQuery, RowSlice, join_slices
from sonde.store.remote import Remote, Unreachable
from sonde.store.run import Run, Runs, open_run, read_rows
from sonde.store.schemas import ENDED, Manifest

if TYPE_CHECKING:
    from sonde.store.index_writer import IndexWriter

_T = TypeVar("_T")
_R = TypeVar("_R")
_Loaded = tuple[Run, RowSlice]  # a run, with those of its rows that were asked for

_REQUESTS_AT_ONCE = 32  # to an object store


def load(
    root: str | Place = "runs",
    where: pl.Expr | None = None,
    *,
    metrics: Collection[str] | None = None,
    layers: bool = True,
    of: Collection[str] | None = None,
) -> Runs:
    """Read every run of a store.  `load("runs").rows` has one measurement a row; `.configs` says what was run.

    `metrics` and `of` name the metrics and the runs whose rows are read, and `layers=False` leaves out rows of single
    layers: a store of many runs is read faster and in less memory.  `metrics=()` reads no rows.  `where` keeps the
    rows for which it is true; windows in it are over run and metric.

    A run that cannot be read is left out, reported on standard error and named in `.broken`; it is an error if no run
    can be read.  Where many runs are not in the store's index, the index is written.
    """
    root = place(root)
    present = stamps_of(root)
    _tell_about_store(root, present)
    query = RowQuery(metrics=metrics, layers=layers, where=where)
    known = read_index(root, present)
    if known.changed:
        changed = listed(known.changed, 3)
        tell(f"{root} has runs that changed since its index was written, and are read from their folders: {changed}")
    asked = present if of is None else set(of)
    indexed = [id for id in present if id in asked and known.has(id, query)]
    found = known.rows(indexed, query)
    known = known.without([id for id in indexed if id not in found])
    found = {id: rows for id, rows in found.items() if id in known.runs}
    fresh = [id for id in present if id not in known.runs or (id in asked and id not in found)]
    reader = _FolderReader(root, present, known, asked, query)
    try:
        read = _each(root, reader.read, fresh)
        found |= reader.written()
    finally:
        reader.close()
        known.close()
    broken = {id: error for id, error in zip(fresh, read, strict=True) if isinstance(error, SondeError)}
    if broken and len(broken) == len(present):
        raise next(iter(broken.values()))
    for id, error in broken.items():
        tell(f"left out: {id} ({error})")
    loaded = {id: (run, found.get(id, NO_ROWS)) for id, run in known.runs.items()}
    for one in read:
        if not isinstance(one, SondeError):
            run, rows = one
            loaded[run.id] = (run, rows if rows.count else found.get(run.id, rows))
    reasons = {id: str(error).replace(f"{root}/", "") for id, error in broken.items()}
    return replace(_runs(root, [loaded[id] for id in present if id not in broken]), broken=reasons)


def _tell_about_store(root: Place, present: Collection[str]) -> None:
    if foreign := foreign_folders(root, present):
        tell(f"{foreign} folder{'s' * (foreign != 1)} in {root} skipped: no run.json of Sonde's")
    if incomplete := why_incomplete(root):
        tell(incomplete)


def load_some(root: str | Place, ids: Iterable[str], *, metrics: Collection[str] | None = None) -> Runs:
    """Read those of these runs that are in the store, without its index; `metrics` as in `load`."""
    root = place(root)
    query = RowQuery(metrics=metrics)
    return _runs(root, [_slice(*_read(root / id, query)) for id in ids if run_exists(root / id)])


class RowReader:
    """Reads rows of a store when they are asked for.  It looks once at which runs there are."""

    def __init__(self, root: str | Place) -> None:
        self.root = place(root)
        self._stamps = stamps_of(self.root)

    @property
    def packed_bytes(self) -> int:
        """The size of the files that hold the rows of trained runs."""
        return sum(map(bytes_of_rows, self._stamps.values()))

    @cached_property
    def _index(self) -> Index:
        return replace(read_index(self.root, self._stamps), runs={}, lines=Index(self.root).lines)

    def __call__(self, runs: Collection[str], metrics: Collection[str] | None = None, **where: int) -> pl.DataFrame:
        """The rows of these trained runs, or those of some metrics and of one epoch or layer.

        A name that ends in `[` stands for a family of metrics.
        """
        wanted, index = {*runs}, self._index
        ids = [id for id in self._stamps if id in wanted]
        chosen = pl.all_horizontal(pl.col("run").is_in(ids), *(pl.col(key) == value for key, value in where.items()))
        if metrics is not None and any(name.endswith("[") for name in metrics):
            chosen, metrics = chosen & named(metrics), None
        query = RowQuery(metrics=metrics, where=chosen)
        found = index.rows([id for id in ids if index.has(id, query)], query)
        return join_slices(found[id] if id in found else self._from_folder(id, query) for id in ids)

    def _from_folder(self, id: str, query: RowQuery) -> RowSlice:
        return _slice(*_read(self.root / id, query))[1]

    def stamp(self, runs: Iterable[str]) -> str:
        """Changes when a file of one of these runs does."""
        return "\n".join(f"{run} {self._stamps.get(run)}" for run in runs)


def load_manifests(root: Place, ids: Iterable[str]) -> dict[str, Manifest]:
    """The manifests of those of these runs that are in the store."""
    present = stamps(root) or {}
    wanted = {id: present[id] for id in ids if id in present}
    known = indexed_manifests(root, wanted)
    fresh = [id for id in wanted if id not in known]
    return known | dict(zip(fresh, _each(root, lambda id: read_manifest(root / id), fresh), strict=True))


def _each(root: Place, read: Callable[[_T], _R], wanted: Sequence[_T]) -> list[_R]:
    """Call `read` on each; for an object store, on several at a time."""
    if not isinstance(root, Remote):
        return [read(one) for one in wanted]
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
        return list(threads.map(read, wanted))


class _FolderReader:
    """Reads runs from their folders.  Where enough of them are not in the index, it is written."""

    def __init__(
        self, root: Place, present: Mapping[str, str], known: Index, asked: Container[str], query: RowQuery
    ) -> None:
        self.root, self.present, self.known, self.asked, self.query = root, present, known, asked, query
        self.allowance = Allowance(0)
        self.lock = Lock()
        self.writer: IndexWriter | None = None
        if is_due(sum(id not in known.runs for id in present), len(known.runs)):
            from sonde.store import index_writer

            self.writer = index_writer.IndexWriter(known, query)

    def read(self, id: str) -> _Loaded | SondeError:
        """A run, or why it cannot be read.  A store that does not answer is an error of the whole load."""
        try:
            return self._read(id)
        except Unreachable:
            raise
        except SondeError as error:
            return error

    def _read(self, id: str) -> _Loaded:
        writer = None if id in self.known.runs else self.writer
        query = self.query if id in self.asked else RowQuery(metrics=())
        run, rows = _read(self.root / id, query if writer is None else RowQuery())
        self._count(run, rows.height)
        if writer is not None and run.manifest.state in ENDED and not run.is_watched:
            with self.lock:
                in_writer = writer.add(run, self.present[id], rows)
            if in_writer or query.is_empty:
                return _slice(run, empty())
        return _slice(run, rows if writer is None else query.select(rows))

    def written(self) -> dict[str, RowSlice]:
        """Finish the index; return the rows that are asked for of the runs that were added to it."""
        if self.writer is None:
            return {}
        self.writer.finish()
        return {id: rows for id, rows in self.writer.found.items() if id in self.asked}

    def close(self) -> None:
        """Remove an index that was not finished."""
        if self.writer is not None:
            self.writer.abandon()

    def _count(self, run: Run, rows: int) -> None:
        """Raise where the rows of all runs that were read are more than their bytes explain."""
        with self.lock:
            packed = sum(known.bytes for known in (run.manifest.checksums or {}).values())
            self.allowance.left += max(packed, bytes_of_rows(self.present[run.id]))
            self.allowance.take(rows, run.id)


def _read(path: Place, query: RowQuery) -> tuple[Run, pl.DataFrame]:
    """A run, and those of its rows that are asked for."""
    run, rows = open_run(path), empty()
    if not query.is_empty:
        manifest, rows = read_rows(run, run.manifest)
        run = replace(run, manifest=manifest)
    return run, query.select(rows)


def _slice(run: Run, rows: pl.DataFrame) -> _Loaded:
    return run, RowSlice(rows, 0, rows.height)


def _runs(root: Place, loaded: Sequence[_Loaded]) -> Runs:
    old = sum(run.manifest.checksums is None for run, _ in loaded)
    if old:
        runs = f"{old} run{'s' * (old != 1)} in {root}"
        tell(f"{runs} stored without checksums, by 0.1.0: the numbers cannot be verified")
    rows = join_slices(rows for run, rows in loaded if not run.is_watched)
    watched = [rows.frame for run, rows in loaded if run.is_watched]
    if watched:
        rows = pl.concat([rows, *watched], how="diagonal")
    return Runs(rows, [run for run, _ in loaded if not run.is_watched], [run for run, _ in loaded if run.is_watched])
