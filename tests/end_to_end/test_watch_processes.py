"""Watches in processes that end, crash, are killed, or train together."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl

import sonde
from sonde.observe.row_writer import WAITING_ROWS

WORKER = Path(__file__).parent / "watch_worker.py"


def start(what: str, runs: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WORKER), what, str(runs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def test_a_kill_loses_no_more_than_the_rows_that_were_waiting(tmp_path: Path) -> None:
    process = start("forever", tmp_path)
    assert process.stdout is not None
    told = 0
    while told < 60:
        told = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    stored = sonde.load(tmp_path)
    assert stored.watched[0].manifest.state == "unfinished"
    per_step = stored.rows.filter(pl.col("step") == 3).height
    waiting = set(range(told)) - set(stored.rows["step"].to_list())
    assert per_step > 100
    assert per_step * (len(waiting) - 1) < WAITING_ROWS, waiting
    assert waiting <= {*range(told - len(waiting), told)}, "the steps before are whole"
    assert stored.watched[0].facts["modules"]


def test_at_the_end_of_the_process_the_run_is_complete(tmp_path: Path) -> None:
    process = start("to_the_end", tmp_path)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    stored = sonde.load(tmp_path)
    run = stored.watched[0]
    assert (run.id, run.manifest.state, run.manifest.step) == (out.strip(), "complete", 30)
    assert sorted(file.name for file in (tmp_path / run.id).iterdir()) == [
        "facts-1.json",
        "manifest.json",
        "metrics-0001.parquet",
        "run.json",
    ]
    assert stored.rows["step"].unique().sort().to_list() == [*range(10), 25]


def test_a_crash_is_told_in_the_run(tmp_path: Path) -> None:
    process = start("crash", tmp_path)
    process.communicate(timeout=120)
    run = sonde.load(tmp_path).watched[0]
    assert (run.manifest.state, run.manifest.message) == ("failed", "ZeroDivisionError: after 5 steps")


def test_of_two_processes_that_train_together_the_first_writes_and_no_bit_changes(tmp_path: Path) -> None:
    meeting = str(tmp_path / "meeting")
    processes = [start("together", tmp_path / "runs", RANK=str(rank), STORE=meeting) for rank in range(2)]
    said = [process.communicate(timeout=200) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    heights = dict(line.split() for out, _ in said for line in out.splitlines())
    assert int(heights["0"]) > 0
    assert int(heights["1"]) == 0
    run = sonde.load(tmp_path / "runs").watched[0]
    assert run.facts["ranks"] == 2
    assert {module["name"] for module in run.facts["modules"]} == {
        *(str(place) for place in range(30)),
        "(model)",
    }
