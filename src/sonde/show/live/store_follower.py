"""Read a store again and again for the live page: only what changed, in bounded memory, and without writing."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from sonde.core.errors import SondeError
from sonde.metrics.rows import WATCHED, empty
from sonde.store.files import Place
from sonde.store.folder import read_part, read_visible
from sonde.store.journal import journal_name, part_files, read_watched
from sonde.store.listing import stamps
from sonde.store.load import load_some
from sonde.store.run import Run, Runs
from sonde.store.schemas import ENDED, Manifest

MOST_ROWS = 300_000  # of all watched runs; of a run with more than its share, steps are left out
MOST_TRAINED_ROWS = 4_000_000  # of all trained runs; the runs that were written least recently are left out
FIRST_STEPS = 10  # always kept
FEWEST_ROWS = 100  # a run may always have so many


class StoreFollower:
    """Reads a folder of runs, which need not exist yet, again and again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stamps: dict[str, str] = {}  # of the runs as they were read
        self._read: dict[str, Runs] = {}  # of one run each
        self._broken: dict[str, str] = {}
        self._rows: dict[str, _BoundedRows] = {}  # of watched runs
        self._statuses: dict[str, str] = {}  # of runs that have not ended
        self._trained: dict[str, tuple[int, int]] = {}  # when trained runs were written, and how many rows are held
        self.left_out: set[str] = set()  # trained runs whose rows would be too many

    def refresh(self) -> bool:
        """Read what changed since the last call; whether anything did."""
        present = self._present()
        gone = self.stamps.keys() - present.keys()
        for id in gone:
            for known in (self._read, self._broken, self._rows, self._trained):
                known.pop(id, None)
        again = self.left_out if gone else set()  # there may be room for them
        changed = [id for id, stamp in present.items() if self.stamps.get(id) != stamp or id in again]
        self.left_out -= {*changed, *gone}
        for _, id in sorted(((_written(self.root / id), id) for id in changed), reverse=True):
            self._read_again(id)
            self._make_room()
        self.stamps = present
        before = self._statuses
        self._statuses = {run.id: run.status.words for run in self._open()}
        return bool(changed or gone or before != self._statuses)

    @property
    def steps(self) -> dict[str, int]:
        """Of watched runs: how many steps were watched, those left out included."""
        return {id: rows.steps for id, rows in self._rows.items()}

    def stored(self) -> Runs:
        """Everything that can be read."""
        known = [self._read[id] for id in self.stamps if id in self._read]
        return Runs(
            pl.concat([empty(), *(one.rows for one in known)], how="diagonal"),
            [_without_status(run) for one in known for run in one.runs],
            [_without_status(run) for one in known for run in one.watched],
            dict(self._broken),
        )

    def _present(self) -> dict[str, str]:
        """Every run with the stamps of its files, and with the size of the journal that a watch appends to."""
        if not self.root.is_dir():
            return {}
        present = stamps(self.root) or {}
        for run in self._open(watched=True):
            if run.id in present:
                present[run.id] += f"|{_size(self.root / run.id / journal_name(run.manifest))}"
        return present

    def _open(self, *, watched: bool = False) -> list[Run]:
        """Runs that have not ended, or only the watched ones of them."""
        runs = [run for known in self._read.values() for run in (*(() if watched else known.runs), *known.watched)]
        return [_without_status(run) for run in runs if run.manifest.state not in ENDED]

    def _read_again(self, id: str) -> None:
        self._broken.pop(id, None)
        try:
            self._read[id] = known = self._loaded(id)
            for run in known.watched:
                _ = run.facts  # read now and kept with the run: a model of many modules has many
            if known.runs:
                self._trained[id] = _written(self.root / id), known.rows.height
        except SondeError as error:
            self._read.pop(id, None)
            self._trained.pop(id, None)
            self._broken[id] = str(error)

    def _make_room(self) -> None:
        """Leave out trained runs, those first that were written least recently, until their rows are few enough."""
        held = sum(rows for _, rows in self._trained.values())
        while held > MOST_TRAINED_ROWS and len(self._trained) > 1:
            oldest = min(self._trained, key=lambda id: (self._trained[id], id))
            held -= self._trained.pop(oldest)[1]
            del self._read[oldest]
            self.left_out.add(oldest)

    def _loaded(self, id: str) -> Runs:
        """A run; of a watched one, a bounded number of rows."""
        known = load_some(self.root, [id], metrics=())
        if not known.watched:
            return load_some(self.root, [id]) if known.runs else known
        (run,) = known.watched
        rows = self._rows.get(id)
        if rows is None or not rows.continues(run.manifest):
            rows = self._rows[id] = _BoundedRows.of(run.about)
        manifest, kept = rows.read(run.path, run.manifest, MOST_ROWS // len(self._rows))
        return replace(known, rows=kept, watched=[replace(run, manifest=manifest)])


def _without_status(run: Run) -> Run:
    """The run without its cached status; facts stay cached."""
    again = replace(run)
    if "facts" in vars(run):
        vars(again)["facts"] = vars(run)["facts"]
    return again


def _written(folder: Path) -> int:
    """When a run's manifest was written, in nanoseconds; 0 where it has none."""
    try:
        return (folder / "manifest.json").stat().st_mtime_ns
    except OSError:
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


@dataclass
class _BoundedRows:
    """The rows of one watched run.  Each part of its journal is read once, and a bounded number of rows is kept.

    Where there are too many, the first ten steps, the last, and every 2nd, 4th, 8th, … watched step are kept.
    """

    every: int  # steps between two watched ones
    steps: int = 0  # that were watched, those left out included
    _parts: list[str] = field(default_factory=list)  # digests of those that were read
    _rows: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=WATCHED))  # of these
    _counted: tuple[int, int] = (0, -1)  # watched steps in these, and the last of them
    _strides: list[int] = field(default_factory=lambda: [1, 1])  # of modules, of losses; they only grow

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> "_BoundedRows":
        """No rows yet, of a run that is described so."""
        every = about.get("every")
        return cls(every if isinstance(every, int) and every > 0 else 1)

    def continues(self, manifest: Manifest) -> bool:
        """Whether the run is the one that was read, and not another under the same name."""
        return _digests(manifest)[: len(self._parts)] == self._parts

    def read(self, path: Place, manifest: Manifest, room: int) -> tuple[Manifest, pl.DataFrame]:
        """The run as it is now, in about `room` rows; of its parts, only new ones are read."""
        manifest, _ = read_visible(path, lambda known: self._read_new_parts(path, known, room), manifest)
        manifest, rest = read_watched(path, manifest, after=len(self._parts))
        self.steps, _ = self._count(rest)
        return manifest, self._kept(pl.concat([self._rows, rest]), room)

    def _read_new_parts(self, path: Place, manifest: Manifest, room: int) -> None:
        new = list(zip(part_files(manifest), _digests(manifest), strict=True))[len(self._parts) :]
        for file, digest in new:
            part = read_part(path / file, manifest, WATCHED)
            self._counted = self._count(part)
            self._rows = self._kept(pl.concat([self._rows, part]), room)
            self._parts.append(digest)

    def _count(self, more: pl.DataFrame) -> tuple[int, int]:
        """How many steps were watched with these rows, and which was the last."""
        steps, last = self._counted
        new = more.filter(pl.col("module").is_not_null(), pl.col("step") > last)["step"].unique().to_list()
        return steps + len(new), max([last, *new])

    def _kept(self, rows: pl.DataFrame, room: int) -> pl.DataFrame:
        """Losses, which may be of every step, have a quarter of the room."""
        room = max(room, FEWEST_ROWS)
        of_module = rows["module"].is_not_null()
        modules = self._chosen(rows["step"], of_module, 0, self.every, 3 * room // 4)
        return rows.filter(modules | self._chosen(rows["step"], ~of_module, 1, 1, room // 4))

    def _chosen(self, step: pl.Series, among: pl.Series, kind: int, unit: int, room: int) -> pl.Series:
        """Which of the rows are kept: as many steps as have room, evenly."""
        last = int(step.filter(among).max() or 0)  # type: ignore[arg-type]
        while True:
            stride = unit * self._strides[kind]
            chosen = among & ((step < FIRST_STEPS) | (step % stride == 0) | (step == last))
            if self._strides[kind] == 1:
                chosen = among
            if int(chosen.sum()) <= room or stride > last:
                return chosen
            self._strides[kind] *= 2


def _digests(manifest: Manifest) -> list[str]:
    known = manifest.checksums or {}
    return [known[file].sha256 if file in known else "" for file in part_files(manifest)]
