"""Read a store: tidy rows as one DataFrame, and what each run was."""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, TypeVar

import polars as pl

from sonde.core.errors import SondeError, one_line
from sonde.core.run_ids import rule_label
from sonde.metrics.rows import empty
from sonde.store import index, index_writer
from sonde.store.index import Index
from sonde.store.index_writer import Writer
from sonde.store.journal import read_watched
from sonde.store.limits import Allowance
from sonde.store.listing import stamps, stamps_of, strangers
from sonde.store.notices import tell
from sonde.store.partial import why_incomplete
from sonde.store.place import Place, place
from sonde.store.remote import Remote, Unreachable
from sonde.store.row_query import Wanted
from sonde.store.row_slices import NO_ROWS, Stretch, joined
from sonde.store.run import ENDED, Manifest, RunFolder
from sonde.store.schemas import WATCHED as KIND
from sonde.store.stored import Run, Runs, WatchedRun

T = TypeVar("T")
R = TypeVar("R")

AT_A_TIME = 32  # requests to an object store


@dataclass(frozen=True)
class Entry:
    """A run of the store, with those of its rows that were asked for."""

    id: str
    description: dict[str, Any]
    manifest: Manifest
    rows: Stretch


def load(
    root: str | Place = "runs",
    where: pl.Expr | None = None,
    *,
    metrics: Collection[str] | None = None,
    layers: bool = True,
    of: Collection[str] | None = None,
) -> Runs:
    """Every run of a store.  `load("runs").rows` has one measurement a row; `.configs` says what was run.

    `metrics` and `of` name the metrics and the runs whose rows are wanted, and `layers=False` leaves out those of
    single layers; a store of many runs is read the faster for it, and in less memory.  `metrics=()` reads no rows.
    `where` keeps the rows of which it is true; windows in it are over run and metric.

    A run that cannot be read is left out, told and named in `.broken`; it is an error where there is no other.
    """
    root = place(root)
    present = stamps_of(root)
    if apart := strangers(root, present):
        tell(f"{apart} folder{'s' * (apart != 1)} in {root} skipped: no run.json of Sonde's")
    if incomplete := why_incomplete(root):
        tell(incomplete)
    wanted = Wanted(metrics=metrics, layers=layers, where=where)
    known = index.read(root, present)
    if known.changed:
        told = ", ".join(known.changed[:3]) + (", …" if len(known.changed) > 3 else "")
        tell(f"{root} has runs that changed since its index was written, and are read from their folders: {told}")
    asked = present if of is None else set(of)
    indexed = [id for id in present if id in asked and known.has(id, wanted)]
    found = known.rows(indexed, wanted)
    known = known.without([id for id in indexed if id not in found])
    found = {id: rows for id, rows in found.items() if id in known.lines}
    fresh = [id for id in present if id not in known.lines or (id in asked and id not in found)]
    writer = Writer(known, wanted)
    try:
        reading = _Reading(root, present, known, asked, wanted, writer)
        read = _each(root, _unless_broken(reading), fresh)
        writer.finish()
    finally:
        writer.abandon()
        known.close()
    found |= {id: rows for id, rows in writer.found.items() if id in asked}
    broken = {id: error for id, error in zip(fresh, read, strict=True) if isinstance(error, SondeError)}
    if broken and len(broken) == len(present):
        raise next(iter(broken.values()))
    for id, error in broken.items():
        tell(f"left out: {id} ({error})")
    entries = {
        entry.id: replace(entry, rows=found.get(entry.id, entry.rows)) if not entry.rows.count else entry
        for entry in read
        if isinstance(entry, Entry)
    }
    present = {id: stamp for id, stamp in present.items() if id not in broken}
    for id in present:
        if id not in entries:
            line = known.lines[id]
            entries[id] = Entry(id, line.description, line.manifest, found.get(id, NO_ROWS))
    reasons = {id: str(error).replace(f"{root}/", "") for id, error in broken.items()}
    return replace(_runs(root, [entries[id] for id in present]), broken=reasons)


def load_some(root: str | Place, ids: Iterable[str], *, metrics: Collection[str] | None = None) -> Runs:
    """Those of these runs that are in the store; `metrics` as in `load`."""
    root = place(root)
    there = [id for id in ids if RunFolder(root / id).exists()]
    return _runs(root, [_entry(root / id, Wanted(metrics=metrics)) for id in there])


def manifests(root: Place, ids: Iterable[str]) -> dict[str, Manifest]:
    """How far those of these runs came that are in the store."""
    present = stamps(root) or {}
    wanted = {id: present[id] for id in ids if id in present}
    known = index.manifests(root, wanted)
    fresh = [id for id in wanted if id not in known]
    return known | dict(zip(fresh, _each(root, lambda id: RunFolder(root / id).manifest(), fresh), strict=True))


def _each(root: Place, read: Callable[[T], R], wanted: Sequence[T]) -> list[R]:
    """Read one after the other; from an object store, several at a time."""
    if not isinstance(root, Remote):
        return [read(one) for one in wanted]
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        return list(threads.map(read, wanted))


def _unless_broken(read: Callable[[str], Entry]) -> Callable[[str], Entry | SondeError]:
    """What is read of a run, or why it cannot be; a store that does not answer is no fault of the run's."""

    def attempt(id: str) -> Entry | SondeError:
        try:
            return read(id)
        except Unreachable:
            raise
        except SondeError as error:
            return error

    return attempt


class _Reading:
    """Reads runs from their folders, and hands those that are not in the index to its writer."""

    def __init__(
        self,
        root: Place,
        present: Mapping[str, str],
        known: Index,
        asked: Container[str],
        wanted: Wanted,
        writer: Writer,
    ) -> None:
        self.root, self.present, self.known = root, present, known
        self.asked, self.wanted, self.writer = asked, wanted, writer
        self.indexing = index_writer.is_due(sum(id not in known.lines for id in present), len(known.lines))
        self.allowance = Allowance(0)
        self.lock = Lock()

    def __call__(self, id: str) -> Entry:
        to_index = self.indexing and id not in self.known.lines
        wanted = self.wanted if id in self.asked else Wanted(metrics=())
        if not to_index:
            return self._counted(_entry(self.root / id, wanted))
        whole = self._counted(_entry(self.root / id, Wanted()))
        if whole.manifest.state in ENDED and not _is_watched(whole):
            with self.lock:
                told = self.writer.add(id, self.present[id], whole.description, whole.manifest, whole.rows.frame)
            if told or wanted.nothing:
                return replace(whole, rows=NO_ROWS)
        return replace(whole, rows=_stretch(wanted.of(whole.rows.frame)))

    def _counted(self, entry: Entry) -> Entry:
        """The entry, unless the rows of all that were read are more than their bytes explain."""
        with self.lock:
            packed = sum(known.bytes for known in (entry.manifest.checksums or {}).values())
            self.allowance.left += max(packed, index.bytes_of_rows(self.present[entry.id]))
            self.allowance.take(entry.rows.count, entry.id)
        return entry


def _entry(path: Place, wanted: Wanted) -> Entry:
    folder = RunFolder(path)
    manifest = folder.manifest()
    known = folder.description(manifest)
    rows = empty()
    if not wanted.nothing:
        read = read_watched if known.get("kind") == KIND else RunFolder.read
        manifest, rows = read(folder, manifest)
    return Entry(path.name, known, manifest, _stretch(wanted.of(rows)))


def _stretch(rows: pl.DataFrame) -> Stretch:
    return Stretch(rows, 0, rows.height)


def _runs(root: Place, entries: Sequence[Entry]) -> Runs:
    trained = [entry for entry in entries if not _is_watched(entry)]
    watched = [entry for entry in entries if _is_watched(entry)]
    _tell_of_the_unverifiable(root, entries)
    rows = joined(entry.rows for entry in trained)
    if watched:
        rows = pl.concat([rows, *(entry.rows.frame for entry in watched)], how="diagonal")
    return Runs(
        rows,
        [_run(root / entry.id, entry) for entry in trained],
        [WatchedRun(entry.id, _about(entry.description), entry.manifest, root / entry.id) for entry in watched],
    )


def _tell_of_the_unverifiable(root: Place, entries: Sequence[Entry]) -> None:
    old = sum(entry.manifest.checksums is None for entry in entries)
    if old:
        runs = f"{old} run{'s' * (old != 1)} in {root}"
        tell(f"{runs} stored without checksums, by 0.1.0: the numbers cannot be verified")


def _is_watched(entry: Entry) -> bool:
    return entry.description.get("kind") == KIND


def _about(description: Mapping[str, Any]) -> dict[str, Any]:
    """What readers show of a run; a label is one line."""
    about: dict[str, Any] = description["about"]
    if any(isinstance(value, str) and one_line(value) != value for value in about.values()):
        return {key: one_line(value) if isinstance(value, str) else value for key, value in about.items()}
    return about


def _run(path: Place, entry: Entry) -> Run:
    known = entry.description
    about = _about(known)
    label = one_line(rule_label(about["rule_label"], known["config"]["rule"]))
    return Run(
        entry.id,
        known["config"],
        about | {"rule_label": label},
        entry.manifest,
        path,
        known.get("defaults", {}),
    )
