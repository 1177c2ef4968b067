"""The live page opens with the runs that train now: how far each is, the time left, and its curve."""

import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest

import sonde
from sonde.show.live.store_poller import MOST_POINTS, _curve, running_runs, time_left
from sonde.store.journal import Journal
from sonde.store.lock import RunStatus
from sonde.store.run import Run, Runs
from sonde.studies import STUDIES
from stores import some_rows, write_run

BEGAN = "2026-01-01T00:00:00+00:00"


def as_running(run: Run, from_epoch: int | None, started: str = BEGAN) -> Run:
    """The run, as it is seen while its process lives."""
    session = {"started": started, "from_epoch": from_epoch}
    now = replace(run, manifest=replace(run.manifest, sessions=[session]))
    vars(now)["status"] = RunStatus("running")
    return now


@pytest.fixture
def stored(tmp_path: Path) -> Runs:
    """A run after epoch 6 of 20, and one that is complete."""
    first, second, *_ = STUDIES["audit"].configs("quick", [1])
    write_run(tmp_path, first, state="unfinished", epoch=6)
    write_run(tmp_path, second)
    return sonde.load(tmp_path)


def unfinished(stored: Runs) -> Run:
    (found,) = (run for run in stored.runs if run.manifest.state == "unfinished")
    return found


def measured_after(run: Run, seconds: float) -> None:
    at = datetime.fromisoformat(BEGAN).timestamp() + seconds
    os.utime(Path(str(run.path)) / "manifest.json", (at, at))


@pytest.mark.parametrize(("from_epoch", "expected"), [(None, "about 2 min left"), (4, "about 7 min left")])
def test_the_time_left_follows_from_the_epochs_of_this_session(
    stored: Runs, from_epoch: int | None, expected: str
) -> None:
    run = as_running(unfinished(stored), from_epoch)
    measured_after(run, 60)  # six epochs, or two, in a minute; fourteen follow
    assert time_left(run) == expected


def test_no_time_is_told_where_none_is_known(stored: Runs) -> None:
    run = unfinished(stored)
    measured_after(run, 60)
    assert "after the first epoch" in time_left(as_running(run, 6))
    assert "unknown" in time_left(as_running(run, None, started="yesterday"))
    measured_after(run, -60)  # clocks of two machines differ
    assert "about" not in time_left(as_running(run, None))


def test_only_runs_that_train_are_shown_with_their_progress_and_their_stored_loss(stored: Runs) -> None:
    run = unfinished(stored)
    measured_after(run, 60)
    now = replace(stored, runs=[as_running(one, None) if one.id == run.id else one for one in stored.runs])
    (shown,) = running_runs(now)
    assert shown["id"] == run.id
    assert shown["progress"][:2] == ["epoch 6 of 20", "about 2 min left"]
    assert shown["done"] == 6 / 20
    rows = stored.rows.filter(run=run.id, metric="train_loss").sort("epoch")
    assert shown["curve"]["x"] == rows["epoch"].to_list()
    assert shown["curve"]["y"] == pytest.approx(rows["value"].to_list(), rel=1e-4)
    assert running_runs(stored) == []


def test_a_watched_loop_shows_its_step_and_no_end(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "net", {"label": "net", "model": "Net", "parameters": 3}, {"started": BEGAN})
    for step in range(3):
        journal.append(some_rows(step), step)
    stored = sonde.load(tmp_path)
    (shown,) = running_runs(stored)
    assert shown["progress"][0] == "step 2"
    assert shown["done"] is None
    journal.close("complete", 3)


def test_a_long_curve_keeps_its_first_and_last_points(stored: Runs) -> None:
    row = stored.rows.filter(metric="train_loss").head(1)
    numbers = pl.int_range(1001)
    long = pl.concat([row] * 1001).with_columns(epoch=numbers, value=numbers.cast(pl.Float64))
    curve = _curve(long, "epoch", "loss")
    assert (curve["x"][0], curve["x"][-1]) == (0, 1000)
    assert len(curve["x"]) <= MOST_POINTS + 1
    assert curve["y"] == pytest.approx(curve["x"])
