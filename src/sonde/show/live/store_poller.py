"""Keep the live page up to date with a store.

The table of runs and the charts are made anew at every change.  Findings, audit and diagnoses take longer: a second
thread makes them, and the page shows the last ones until they are ready.
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl

from sonde.analysis.runs import by_recipe
from sonde.core.errors import SondeError, tell
from sonde.core.formatting import percent
from sonde.metrics import TRAINED
from sonde.metrics.rows import empty
from sonde.show.live import Feed
from sonde.show.live.store_follower import StoreFollower
from sonde.show.report import ReportContents, report_contents
from sonde.show.report.charts import colours, styled_names
from sonde.show.report.page import Pictures, duration, page_data, page_parts, render_report, shown_runs
from sonde.show.report.runs import WatchedSection, label_runs, packed_run, watched_data, watched_sections
from sonde.store.run import Run, Runs

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
            "html": page_parts(now, {section.anchor: Pictures() for section in now.sections}, shown),
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
