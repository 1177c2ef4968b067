"""Read a store: tidy rows as one DataFrame, and what each run was."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import polars as pl

from sonde.core.errors import SondeError, tell
from sonde.core.formatting import listed
from sonde.metrics.rows import named
from sonde.store import files
from sonde.store.files import ASIDE, Allowance, Place, place
from sonde.store.folder import Damaged, how_to_restore, read_manifest, read_visible, run_exists
from sonde.store.index import (
    INDEX_FOLDER,
    INDEX_NAME,
    Index,
    bytes_of_rows,
    indexed_manifests,
    is_due,
    light,
    read_index,
    refuse_damaged_index,
    write_index,
)
from sonde.store.journal import journal_name, read_facts, verify_journal
from sonde.store.listing import foreign_folders, stamps, stamps_of, why_incomplete
from sonde.store.readings import NO_ROWS, RowQuery, RowSlice, join_slices
from sonde.store.remote import Remote, Unreachable
from sonde.store.run import Run, Runs, open_run, read_rows
from sonde.store.schemas import ENDED, Checksum, Manifest, checksum

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


@dataclass
class Verified:
    """The result of a verification; its size does not grow with the store."""

    runs: int = 0
    files: int = 0
    bytes: int = 0
    indexed: int = 0
    without_checksums: list[str] = field(default_factory=list)
    wrong: dict[str, list[str]] = field(default_factory=dict)  # run, or the index → what is wrong and what helps
    left_over: list[str] = field(default_factory=list)  # files that belong to nothing

    def blame(self, what: str, said: str) -> None:
        """Record what is wrong with a run or with the index."""
        self.wrong.setdefault(what, []).append(said)


def verify(root: str | Place) -> Verified:
    """Read all of a store and compare it with its checksums; nothing is changed."""
    root = place(root)
    present = stamps_of(root)
    found, known = Verified(), read_index(root, present)
    rows_of = _Indexed(known)
    for id in sorted(present, key=lambda id: known.places[id].block if id in known.places else -1):
        found.runs += 1
        try:
            _verify_run(root / id, found, rows_of)
        except SondeError as error:
            found.blame(id, str(error))
    _verify_index(root, found)
    if incomplete := why_incomplete(root):
        found.blame(root.name, incomplete)
    found.left_over += [str(path) for path in _asides(root)]
    return found


def _verify_run(path: Place, found: Verified, indexed: "_Indexed") -> None:
    """Check one run.  If its manifest changes meanwhile, as it does in training, all files are checked again."""
    run = open_run(path)
    if run.manifest.checksums is None:
        found.without_checksums.append(run.id)
    counted: dict[str, int] = {}

    def every_file(manifest: Manifest) -> None:
        counted.clear()
        for name, known in (manifest.checksums or {}).items():
            file = path / name
            if name == journal_name(manifest):
                content = file.read_bytes() if file.exists() else b""
                verify_journal(file, content, manifest)
                counted[name] = len(content)
            elif (there := _checksum(file)) != known:
                raise Damaged(
                    f"{file} is not what was stored ({there.bytes:,} bytes, SHA-256 {there.sha256[:12]}…; stored were "
                    f"{known.bytes:,}, {known.sha256[:12]}…): {how_to_restore(path)}"
                )
            else:
                counted[name] = there.bytes

    manifest, _ = read_visible(path, every_file, run.manifest)
    found.files += len(counted) + 1
    found.bytes += sum(counted.values())
    manifest, rows = read_rows(run, manifest)
    if run.is_watched:
        read_facts(path)
    else:
        indexed.compare(replace(run, manifest=manifest), rows, found)
    named = {"run.json", "manifest.json", "log.txt", *manifest.files.values(), *(manifest.checksums or {})}
    named |= {*run.description.get("guests", []), journal_name(manifest)}
    found.left_over += [
        str(file) for file in path.iterdir() if file.name not in named and read_manifest(path) == manifest
    ]


def _checksum(path: Place) -> Checksum:
    """The checksum of a file, which is not read into memory at once."""
    if not isinstance(path, Path):
        return checksum(path.read_bytes())
    with files.opened(path) as file:
        return Checksum(hashlib.file_digest(file, "sha256").hexdigest(), file.tell())


class _Indexed:
    """Compares the rows of an index with those of the folders, a block at a time."""

    def __init__(self, known: Index) -> None:
        self.known = known
        self.block = -1
        self.rows: dict[str, RowSlice] = {}
        self.members: dict[int, list[str]] = {}
        for run, where in known.places.items():
            self.members.setdefault(where.block, []).append(run)

    def compare(self, run: Run, rows: pl.DataFrame, found: Verified) -> None:
        if run.id not in self.known.runs:
            return
        copy, block = self.known.runs[run.id], self.known.places[run.id].block
        if block != self.block:
            self.block = block
            self.rows = self.known.rows(self.members[block], RowQuery())
        indexed = self.rows.get(run.id)
        described = {"recipe": run.recipe} | copy.description  # earlier indexes have no recipe keys
        same = copy.manifest == run.manifest and described == run.description
        if indexed is None or not same or not indexed.rows.equals(light(rows)[0]):
            found.blame(INDEX_FOLDER, f"its copy of {run.id} is not what the run has")
        else:
            found.indexed += 1


def _verify_index(root: Place, found: Verified) -> None:
    folder = root / INDEX_FOLDER
    if not (folder / INDEX_NAME).exists():
        return
    try:
        refuse_damaged_index(root)
    except (SondeError, OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
        found.blame(INDEX_FOLDER, str(error))
    if INDEX_FOLDER in found.wrong:
        found.wrong[INDEX_FOLDER].append(f"it can be rebuilt: remove {folder}, and the next reader writes it anew")


def _asides(root: Place) -> Iterator[Place]:
    """What interrupted writers left beside the runs."""
    for folder in (root, root / INDEX_FOLDER, root / ".locks"):
        with suppress(OSError):
            yield from (path for path in folder.iterdir() if path.name.startswith(ASIDE))
