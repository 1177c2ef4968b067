"""The runs of a store as they are now: only what changed is read again, and nothing is ever written."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import polars as pl

from sonde.errors import SondeError
from sonde.report.watched import sampled
from sonde.rows import empty
from sonde.store.journal import journal_name
from sonde.store.listing import stamps
from sonde.store.load import load_some
from sonde.store.run import ENDED
from sonde.store.stored import Run, Runs, WatchedRun

R = TypeVar("R", bound=Run | WatchedRun)


MOST_ROWS = 300_000  # of all watched runs; of a run with more than its share, steps are left out
FEWEST_STEPS = 12  # of a run that are kept in any case


class Following:
    """A folder of runs, which need not be there yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stamps: dict[str, str] = {}  # of the runs as they were read
        self._read: dict[str, Runs] = {}  # of one run each
        self._broken: dict[str, str] = {}
        self.steps: dict[str, int] = {}  # of watched runs: how many were watched, those left out included
        self._words: dict[str, str] = {}  # how runs that have not ended stand

    def look(self) -> bool:
        """Whether something changed since the last look; what did is read."""
        present = self._present()
        changed = [id for id, stamp in present.items() if self.stamps.get(id) != stamp]
        gone = self.stamps.keys() - present.keys()
        for id in gone:
            self._read.pop(id, None)
            self._broken.pop(id, None)
            self.steps.pop(id, None)
        for id in changed:
            self._read_again(id)
        self._keep_within_bounds()
        self.stamps = present
        before = self._words
        self._words = {run.id: run.standing.words for run in self._open()}
        return bool(changed or gone or before != self._words)

    def stored(self) -> Runs:
        """Everything that can be read."""
        known = [self._read[id] for id in self.stamps if id in self._read]
        return Runs(
            pl.concat([empty(), *(one.rows for one in known)], how="diagonal"),
            [_afresh(run) for one in known for run in one.runs],
            [_afresh(run) for one in known for run in one.watched],
            dict(self._broken),
        )

    def _keep_within_bounds(self) -> None:
        """However long runs are watched, so many of their rows are held."""
        watched = {id: known for id, known in self._read.items() if known.watched}
        if sum(known.rows.height for known in watched.values()) > MOST_ROWS:
            room = MOST_ROWS // len(watched)
            for id, known in watched.items():
                self._read[id] = replace(known, rows=thinned(known.rows, room))

    def _present(self) -> dict[str, str]:
        """Every run with the stamps of its files, and of the journal that a watch appends to."""
        if not self.root.is_dir():
            return {}
        present = stamps(self.root) or {}
        for run in self._open():
            if run.id in present and isinstance(run, WatchedRun):
                present[run.id] += f"|{_size(self.root / run.id / journal_name(run.manifest))}"
        return present

    def _open(self) -> list[Run | WatchedRun]:
        """Runs that have not ended."""
        return [
            _afresh(run)
            for known in self._read.values()
            for run in every(known)
            if run.manifest.state not in ENDED
        ]

    def _read_again(self, id: str) -> None:
        self._broken.pop(id, None)
        try:
            self._read[id] = known = load_some(self.root, [id])
            for run in known.watched:
                self.steps[id] = known.rows.filter(pl.col("module").is_not_null())["step"].n_unique()
                _ = run.facts  # kept with the run: pages of many modules have many
        except SondeError as error:
            self._read.pop(id, None)
            self._broken[id] = str(error)


def thinned(rows: pl.DataFrame, most: int) -> pl.DataFrame:
    """About so many rows at most, of steps that `sampled` chooses; losses, which have steps of their own, apart."""
    if rows.height <= most:
        return rows
    of_module = pl.col("module").is_not_null()
    kept = [
        which & pl.col("step").is_in(_steps(rows.filter(which), room))
        for which, room in ((of_module, 3 * most // 4), (~of_module, most // 4))
    ]
    return rows.filter(kept[0] | kept[1])


def _steps(rows: pl.DataFrame, most: int) -> list[int]:
    steps = rows["step"].unique().sort().to_list()
    a_step = -(-rows.height // max(1, len(steps)))
    return sampled(steps, max(FEWEST_STEPS, most // max(1, a_step)))


def every(stored: Runs) -> list[Run | WatchedRun]:
    """Trained and watched runs."""
    return [*stored.runs, *stored.watched]


def _afresh(run: R) -> R:
    """The run without what it remembers of how it stood."""
    again = copy.copy(run)
    vars(again).pop("standing", None)
    return again


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
