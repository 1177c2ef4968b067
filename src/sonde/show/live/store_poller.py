"""Keep the live page up to date with a store, which is read again and again without writing.

Only what changed is read, in bounded memory.  The table of runs and the charts are made anew at every change.
Findings, audit and diagnoses take longer: a second thread makes them, and the page shows the last ones until they are
ready.
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl

from sonde.analysis.runs import by_recipe
from sonde.core.errors import SondeError, tell
from sonde.core.formatting import percent
from sonde.metrics import TRAINED
from sonde.metrics.rows import WATCHED, empty
from sonde.show.live import Feed
from sonde.show.report import (
    ReportContents,
    duration,
    page_data,
    page_parts,
    render_report,
    report_contents,
    shown_runs,
)
from sonde.show.report.charts import colours, styled_names
from sonde.show.report.runs import WatchedSection, label_runs, packed_run, watched_data, watched_sections
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


# ── the state of the page ───────────────────────────────────────────────────────────────────────────
MOST_POINTS = 200  # of the curve of a run that trains
_CURVES = ("train_loss", "loss", "test_loss")
MOST_LIVE_VALUES = 300_000  # of watched runs; of a run with more, steps are left out
_STATES = ("running", "stalled", "interrupted", "failed", "diverged", "complete", "broken")
SHORTEST_WAIT, LONGEST_WAIT = 0.2, 1.0  # seconds between two polls: ten times what a poll takes, within these
FINDINGS_WAIT = 2.0  # seconds between two updates of findings, or three times what an update takes


class PageState:
    """The state of the page: everything it shows, as one JSON object."""

    def __init__(self, source: str, title: str) -> None:
        self.source, self.title = source, title
        self._last = self._contents(Runs(empty(), []))
        self._trouble: str | None = None
        self.page = render_report(self._last, {}, live=True)  # before it was sent anything
        self._reasons: list[str] = []  # of watched runs; indices into it stay valid
        self._packed: dict[str, tuple[Any, dict[str, Any]]] = {}

    def update_findings(self, stored: Runs) -> None:
        """Make findings, audit and diagnoses of what is stored; where that fails, the page says so."""
        try:
            self._last, self._trouble = self._contents(stored), None
        except Exception as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            self._trouble = f"findings and audit are not up to date ({why})"

    def build(
        self,
        stored: Runs,
        stamps: Mapping[str, str],
        steps: Mapping[str, int] = MappingProxyType({}),
        left_out: int = 0,
    ) -> dict[str, Any]:
        """Everything the page shows, with the last findings; packs only the watched runs whose stamp changed.

        `steps` says how many steps of a watched run were watched, where not all of their rows are in memory.
        `left_out` is the number of trained runs that are not in memory.
        """
        last = self._last
        found = {section.run.id: section.findings for section in last.watched}
        watched = watched_sections(stored, lambda run, rows: found.get(run.id))
        runs = label_runs(stored.runs, by_recipe(stored.runs))
        now = replace(last, runs=runs, rows=stored.rows, watched=watched)
        shown = shown_runs(now)
        return {
            **page_data(replace(now, watched=()), shown),
            "watched": self._watched(watched, stamps, steps),
            "html": page_parts(now, {}, shown),
            "colours": colours(styled_names(runs)),
            "running": running_runs(stored),
            "states": _states(stored) + ([["older, not shown", left_out]] if left_out else []),
            "trouble": self._trouble,
        }

    def _contents(self, stored: Runs) -> ReportContents:
        return report_contents(stored, source=self.source, title=self.title)

    def _watched(
        self, sections: Sequence[WatchedSection], stamps: Mapping[str, str], steps: Mapping[str, int]
    ) -> dict[str, Any]:
        room = max(1, MOST_LIVE_VALUES // max(1, len(sections)))
        packed = {}
        for section in sections:
            id = section.run.id
            key = (stamps.get(id), room)
            known = self._packed.get(id)
            packed[id] = known if known and known[0] == key else (key, packed_run(section, self._reasons, room))
        self._packed = packed
        return watched_data([]) | {
            "runs": [run | {"watched": steps.get(id, run["watched"])} for id, (_, run) in packed.items()],
            "reasons": list(self._reasons),
        }


def _states(stored: Runs) -> list[list[Any]]:
    """How many runs are in each state; states that need attention come first."""
    counted: Counter[str] = Counter(run.status.state for run in stored.runs)
    counted.update(run.status.state for run in stored.watched)
    counted["broken"] = len(stored.broken)
    return [[state, counted[state]] for state in _STATES if counted[state]]


class StorePoller:
    """Polls a store and publishes the state of the page; makes findings in a second thread."""

    def __init__(self, root: Path, feed: Feed, state: PageState) -> None:
        self._feed, self._state = feed, state
        self._follower = StoreFollower(root)
        self._stored = self._follower.stored()
        self._changed, self._findings_made = threading.Event(), threading.Event()

    def run(self) -> None:
        """Poll until the process ends."""
        threading.Thread(target=self._make_findings, daemon=True).start()
        while True:
            took = SHORTEST_WAIT
            try:
                took = self._poll()
            except (OSError, SondeError) as error:  # the next poll reads what this one missed
                tell(f"the store cannot be read just now ({error})")
            self._findings_made.wait(min(max(SHORTEST_WAIT, 10 * took), LONGEST_WAIT))

    def _poll(self) -> float:
        """Publish what changed; the seconds it took to see that nothing did, else 0."""
        began = time.monotonic()
        changed = self._follower.refresh()
        took = 0.0 if changed else time.monotonic() - began
        if changed or self._findings_made.is_set() or not self._feed.begun:
            self._findings_made.clear()
            self._stored = self._follower.stored()
            known = self._follower
            self._feed.publish(self._state.build(self._stored, known.stamps, known.steps, len(known.left_out)))
            if changed:
                self._changed.set()
        return took

    def _make_findings(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            began = time.monotonic()
            self._state.update_findings(self._stored)
            self._findings_made.set()
            time.sleep(max(FINDINGS_WAIT, 3 * (time.monotonic() - began)))


# ── the runs that train now ─────────────────────────────────────────────────────────────────────────
def running_runs(stored: Runs) -> list[dict[str, Any]]:
    """The runs that train now, those that began last first: how far each is, the time left, and its loss."""
    running = [run for run in stored.every if run.status.state == "running"]
    found = [_running(run, stored.rows.filter(pl.col("run") == run.id)) for run in running]
    return sorted(found, key=lambda one: one["began"], reverse=True)


def _running(run: Run, rows: pl.DataFrame) -> dict[str, Any]:
    known = {"id": run.id, "label": run.label, "began": str(_session(run).get("started", ""))}
    if run.is_watched:
        steps, losses = max(rows["step"].to_list(), default=0), rows.filter(pl.col("metric") == "loss")
        return known | {
            "progress": [f"step {steps:,}", "a watched loop does not say how many steps follow"],
            "done": None,
            "curve": None if losses.is_empty() else _curve(losses, "step", "loss"),
        }
    rows = rows.filter(pl.col("layer").is_null())
    epoch = run.manifest.epoch or 0
    progress = [f"epoch {epoch:,} of {run.epochs:,}", time_left(run)]
    accuracy = rows.filter(pl.col("metric") == "test_acc", pl.col("defined")).sort("epoch")
    if not accuracy.is_empty():
        progress.append(f"test accuracy {percent(100 * accuracy['value'][-1])}")
    metric = next((name for name in _CURVES if (rows["metric"] == name).any()), None)
    return known | {
        "label": f"{run.label} on {run.about['task_label']}, seed {run.seed}",
        "progress": progress,
        "done": epoch / max(1, run.epochs),
        "curve": metric and _curve(rows.filter(pl.col("metric") == metric), "epoch", TRAINED[metric].label),
    }


def _session(run: Run) -> Mapping[str, Any]:
    return (run.manifest.sessions or [{}])[-1]


def time_left(run: Run) -> str:
    """The time until the last epoch, from the mean time of the epochs of this session."""
    session = _session(run)
    first = session.get("from_epoch")
    done = (run.manifest.epoch or 0) - (first or 0)
    try:
        began = datetime.fromisoformat(str(session.get("started"))).timestamp()
        measured = (Path(str(run.path)) / "manifest.json").stat().st_mtime
    except (OSError, ValueError):
        return "time left unknown"
    if done < 1 or measured <= began:
        return "time left known after the first epoch"
    return f"about {duration((measured - began) / done * (run.epochs - (run.manifest.epoch or 0)))} left"


def _curve(rows: pl.DataFrame, axis: str, label: str) -> dict[str, Any]:
    """The points of a curve, null where there is no number.  Of many points, evenly spaced ones and the last."""
    known = rows.sort(axis).select(axis, pl.when(pl.col("defined") & pl.col("value").is_finite()).then("value"))
    every = -(-known.height // MOST_POINTS)
    kept = known.filter((pl.int_range(pl.len()) % every == 0) | (pl.int_range(pl.len()) == pl.len() - 1))
    return {"axis": axis, "label": label, "x": kept[axis].to_list(), "y": kept["value"].round_sig_figs(5).to_list()}
