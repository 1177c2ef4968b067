"""The runs of a store as they are now: only what changed is read again, and nothing is ever written."""

import copy
from dataclasses import replace
from pathlib import Path

import polars as pl

from sonde.core.errors import SondeError
from sonde.metrics.rows import empty
from sonde.show.live.held_rows import HeldRows
from sonde.store.folder import RunFolder
from sonde.store.journal import journal_name
from sonde.store.listing import stamps
from sonde.store.load import load_some
from sonde.store.run import Run, Runs
from sonde.store.schemas import ENDED

MOST_ROWS = 300_000  # of all watched runs; of a run with more than its share, steps are left out


class Following:
    """A folder of runs, which need not be there yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stamps: dict[str, str] = {}  # of the runs as they were read
        self._read: dict[str, Runs] = {}  # of one run each
        self._broken: dict[str, str] = {}
        self._held: dict[str, HeldRows] = {}  # of watched runs
        self._words: dict[str, str] = {}  # how runs that have not ended stand

    def look(self) -> bool:
        """Whether something changed since the last look; what did is read."""
        present = self._present()
        changed = [id for id, stamp in present.items() if self.stamps.get(id) != stamp]
        gone = self.stamps.keys() - present.keys()
        for id in gone:
            self._read.pop(id, None)
            self._broken.pop(id, None)
            self._held.pop(id, None)
        for id in changed:
            self._read_again(id)
        self.stamps = present
        before = self._words
        self._words = {run.id: run.status.words for run in self._open()}
        return bool(changed or gone or before != self._words)

    @property
    def steps(self) -> dict[str, int]:
        """Of watched runs: how many steps were watched, those left out included."""
        return {id: held.steps for id, held in self._held.items()}

    def stored(self) -> Runs:
        """Everything that can be read."""
        known = [self._read[id] for id in self.stamps if id in self._read]
        return Runs(
            pl.concat([empty(), *(one.rows for one in known)], how="diagonal"),
            [_afresh(run) for one in known for run in one.runs],
            [_afresh(run) for one in known for run in one.watched],
            dict(self._broken),
        )

    def _present(self) -> dict[str, str]:
        """Every run with the stamps of its files, and of the journal that a watch appends to."""
        if not self.root.is_dir():
            return {}
        present = stamps(self.root) or {}
        for run in self._open():
            if run.id in present and run.is_watched:
                present[run.id] += f"|{_size(self.root / run.id / journal_name(run.manifest))}"
        return present

    def _open(self) -> list[Run]:
        """Runs that have not ended."""
        return [
            _afresh(run) for known in self._read.values() for run in every(known) if run.manifest.state not in ENDED
        ]

    def _read_again(self, id: str) -> None:
        self._broken.pop(id, None)
        try:
            self._read[id] = known = self._loaded(id)
            for run in known.watched:
                _ = run.facts  # kept with the run: pages of many modules have many
        except SondeError as error:
            self._read.pop(id, None)
            self._broken[id] = str(error)

    def _loaded(self, id: str) -> Runs:
        """A run; of a watched one, a bounded number of rows."""
        known = load_some(self.root, [id], metrics=())
        if not known.watched:
            return load_some(self.root, [id]) if known.runs else known
        (run,) = known.watched
        held = self._held.get(id)
        if held is None or not held.goes_on(run.manifest):
            held = self._held[id] = HeldRows.of(run.about)
        room = MOST_ROWS // len(self._held)
        manifest, rows = held.read(RunFolder(run.path), run.manifest, room)
        return replace(known, rows=rows, watched=[replace(run, manifest=manifest)])


def every(stored: Runs) -> list[Run]:
    """Trained and watched runs."""
    return [*stored.runs, *stored.watched]


def _afresh(run: Run) -> Run:
    """The run without what it remembers of how it stood."""
    again = copy.copy(run)
    vars(again).pop("status", None)
    return again


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
