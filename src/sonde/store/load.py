"""Read a store: tidy rows as one DataFrame, and what each run was."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import polars as pl

from sonde.core.errors import SondeError, tell
from sonde.core.formatting import listed
from sonde.metrics.rows import named
from sonde.store.files import Allowance, Place, place
from sonde.store.folder import read_manifest, run_exists
from sonde.store.index import Index, bytes_of_rows, indexed_manifests, is_due, read_index, write_index
from sonde.store.listing import foreign_folders, stamps, stamps_of, why_incomplete
from sonde.store.readings import NO_ROWS, RowQuery, RowSlice, join_slices
from sonde.store.remote import Remote, Unreachable
from sonde.store.run import Run, Runs, open_run, read_rows
from sonde.store.schemas import ENDED, Manifest

_T = TypeVar("_T")
_R = TypeVar("_R")

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
    folders = _Folders(root, present)
    runs = known.runs | folders.open([id for id in present if id not in known.runs])
    ended = [run for id, run in runs.items() if id not in known.runs and _may_be_indexed(run)]
    if is_due(len(ended), len(known.runs)):
        known = write_index(known, present, folders.read(ended, RowQuery()))
        runs |= known.runs
        found |= known.rows([run.id for run in ended if run.id in asked and known.has(run.id, query)], query)
    if not query.is_empty:
        rest = [runs[id] for id in present if id in asked and id in runs and id not in found]
        for run, rows in folders.read(rest, query):
            runs[run.id], found[run.id] = run, RowSlice(rows, 0, rows.height)
    broken = {id: folders.broken[id] for id in present if id in folders.broken}
    if broken and len(broken) == len(present):
        raise next(iter(broken.values()))
    for id, error in broken.items():
        tell(f"left out: {id} ({error})")
    loaded = [(runs[id], found.get(id, NO_ROWS)) for id in present if id not in broken]
    reasons = {id: str(error).replace(f"{root}/", "") for id, error in broken.items()}
    return replace(_runs(root, loaded), broken=reasons)


def _tell_about_store(root: Place, present: Collection[str]) -> None:
    if foreign := foreign_folders(root, present):
        tell(f"{foreign} folder{'s' * (foreign != 1)} in {root} skipped: no run.json of Sonde's")
    if incomplete := why_incomplete(root):
        tell(incomplete)


def load_some(root: str | Place, ids: Iterable[str], *, metrics: Collection[str] | None = None) -> Runs:
    """Read those of these runs that are in the store, without its index; `metrics` as in `load`."""
    root = place(root)
    query = RowQuery(metrics=metrics)
    return _runs(root, [_read(root / id, query) for id in ids if run_exists(root / id)])


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
        return join_slices(found[id] if id in found else _read(self.root / id, query)[1] for id in ids)

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


class _Folders:
    """Reads runs from their folders.  `broken` says why some of them cannot be read."""

    def __init__(self, root: Place, present: Mapping[str, str]) -> None:
        self.root, self.present = root, present
        self.broken: dict[str, SondeError] = {}
        self._allowance = Allowance(0)

    def open(self, ids: Iterable[str]) -> dict[str, Run]:
        """The runs, without their rows."""
        return self._tried(open_run, {id: self.root / id for id in ids})

    def read(self, runs: Sequence[Run], query: RowQuery) -> Iterator[tuple[Run, pl.DataFrame]]:
        """Each run as it is now, with those of its rows that are asked for."""
        at_once = _REQUESTS_AT_ONCE if isinstance(self.root, Remote) else 1
        for first in range(0, len(runs), at_once):
            some = {run.id: run for run in runs[first : first + at_once] if run.id not in self.broken}
            for run, rows in self._tried(_read_whole, some).values():
                try:
                    self._count(run, rows.height)
                except SondeError as error:
                    self.broken[run.id] = error
                else:
                    yield run, query.select(rows)

    def _tried(self, read: Callable[[_T], _R], wanted: Mapping[str, _T]) -> dict[str, _R]:
        """Call `read` on each.  A store that does not answer is an error of the whole load."""

        def tried(one: _T) -> _R | SondeError:
            try:
                return read(one)
            except Unreachable:
                raise
            except SondeError as error:
                return error

        found: dict[str, _R] = {}
        for id, result in zip(wanted, _each(self.root, tried, list(wanted.values())), strict=True):
            if isinstance(result, SondeError):
                self.broken[id] = result
            else:
                found[id] = result
        return found

    def _count(self, run: Run, rows: int) -> None:
        """Raise where the rows of all runs that were read are more than their bytes explain."""
        packed = sum(known.bytes for known in (run.manifest.checksums or {}).values())
        self._allowance.left += max(packed, bytes_of_rows(self.present[run.id]))
        self._allowance.take(rows, run.id)


def _read_whole(run: Run) -> tuple[Run, pl.DataFrame]:
    """A run as it is now, and all its rows."""
    manifest, rows = read_rows(run, run.manifest)
    return replace(run, manifest=manifest), rows


def _may_be_indexed(run: Run) -> bool:
    return run.manifest.state in ENDED and not run.is_watched


def _read(path: Place, query: RowQuery) -> tuple[Run, RowSlice]:
    """A run, and those of its rows that are asked for."""
    run = open_run(path)
    if query.is_empty:
        return run, NO_ROWS
    run, rows = _read_whole(run)
    rows = query.select(rows)
    return run, RowSlice(rows, 0, rows.height)


def _runs(root: Place, loaded: Sequence[tuple[Run, RowSlice]]) -> Runs:
    old = sum(run.manifest.checksums is None for run, _ in loaded)
    if old:
        runs = f"{old} run{'s' * (old != 1)} in {root}"
        tell(f"{runs} stored without checksums, by 0.1.0: the numbers cannot be verified")
    rows = join_slices(rows for run, rows in loaded if not run.is_watched)
    watched = [rows.frame for run, rows in loaded if run.is_watched]
    if watched:
        rows = pl.concat([rows, *watched], how="diagonal")
    return Runs(rows, [run for run, _ in loaded if not run.is_watched], [run for run, _ in loaded if run.is_watched])
