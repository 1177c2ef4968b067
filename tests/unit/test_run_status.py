"""How a run stands: told from its manifest, and from who works on it."""

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch
from torch import nn

from conftest import tiny_config
from sonde.observe.watch import watch
from sonde.store import lock as statuses
from sonde.store.files import Place, place
from sonde.store.journal import Journal
from sonde.store.load import load
from sonde.store.lock import SILENT, UNSEEN, Heartbeat, RunStatus, hold, run_status
from sonde.store.schemas import Manifest
from sonde.training.train import train

SESSION = {"from_epoch": None, "environment": {"command": ["sonde", "run", "residual", "--runs", "my runs"]}}
BEGUN = Manifest(sessions=[SESSION])
RESUMES = "`sonde run residual --runs 'my runs'` resumes it"


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return tmp_path if request.param == "local" else place(f"memory://status-{tmp_path.name}")


def signed(store: Place, *, silent: float = 0.0, **about: object) -> Place:
    """A run that somebody signed, and the last beat of it."""
    beat = datetime.now(UTC) - timedelta(seconds=silent)
    known = {"pid": os.getpid(), "host": platform.node(), "since": beat.isoformat()} | about
    if isinstance(store, Path):
        at = store / ".locks" / "r.holder"
        at.parent.mkdir(exist_ok=True)
        at.write_text(json.dumps(known))
        os.utime(at, (beat.timestamp(), beat.timestamp()))
    else:
        (store / ".locks" / "r.json").put(json.dumps({"beat": beat.isoformat(), **known}).encode())  # type: ignore[attr-defined]
    return store / "r"


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_run_is_running_while_it_is_held_and_interrupted_after(store: Place) -> None:
    with hold(store, "r"):
        assert run_status(store / "r", BEGUN) == RunStatus("running")
        assert run_status(store / "another", BEGUN).state == "interrupted"
    assert run_status(store / "r", BEGUN) == RunStatus("interrupted", RESUMES)


def test_a_run_whose_process_is_gone_is_interrupted_however_young_its_beat(store: Place) -> None:
    assert run_status(signed(store, pid=ended_process()), BEGUN) == RunStatus("interrupted", RESUMES)


def test_a_zombie_is_gone(store: Place) -> None:
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert run_status(signed(store, pid=zombie.pid), BEGUN).state == "interrupted"
    finally:
        zombie.wait()


def test_a_living_process_without_a_beat_for_long_is_stalled_and_since_when_is_said(
    store: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statuses, "_began_after", lambda process, moment: False)
    found = run_status(signed(store, silent=SILENT + 60), BEGUN)
    assert found.state == "stalled"
    assert found.why is not None
    assert found.why.startswith("no step since 20")
    assert found.why.endswith(f"UTC; process {os.getpid()} lives")
    assert run_status(signed(store, silent=SILENT - 60), BEGUN) == RunStatus("running")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells when a process began")
def test_a_number_that_belongs_to_another_process_by_now_is_no_sign_of_life(store: Place) -> None:
    assert run_status(signed(store, silent=10 * 365 * 86400), BEGUN).state == "interrupted"


def test_a_process_of_another_machine_is_believed_for_an_hour(store: Place) -> None:
    assert run_status(signed(store, host="elsewhere"), BEGUN).state == "running"
    silent = run_status(signed(store, host="elsewhere", silent=UNSEEN - 60), BEGUN)
    assert silent.state == "stalled"
    assert "cannot be seen from here" in (silent.why or "")
    assert "elsewhere" not in (silent.why or ""), "a report that is sent round names no machine"
    assert run_status(signed(store, host="elsewhere", silent=UNSEEN + 60), BEGUN).state == "interrupted"


def test_a_lease_that_was_not_renewed_is_no_sign_of_life() -> None:
    store = place("memory://status-lease")
    old = (datetime.now(UTC) - timedelta(seconds=70)).isoformat()
    assert run_status(signed(store, host="elsewhere", renewed=old), BEGUN).state == "interrupted"
    now = datetime.now(UTC).isoformat()
    assert run_status(signed(store, host="elsewhere", renewed=now), BEGUN).state == "running"


@pytest.mark.parametrize("content", ["", "[]", '{"pid": "x"}', '{"pid": 1}', "\0"])
def test_a_sign_that_cannot_be_read_is_none(store: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / ".locks").mkdir(exist_ok=True)
    (tmp_path / ".locks" / "r.holder").write_text(content)
    assert run_status(tmp_path / "r", BEGUN).state == "interrupted"


def test_what_has_ended_says_how_whoever_signed(store: Place) -> None:
    path = signed(store)
    assert run_status(path, Manifest(state="complete")) == RunStatus("complete")
    assert run_status(path, Manifest(state="diverged", message="why")) == RunStatus("diverged", "why")
    assert run_status(path, Manifest(state="failed", message="why")).state == "running", "it is tried again"
    assert run_status(store / "b", Manifest(state="failed", message="why")).words == "failed: why"


def test_a_beat_is_written_at_most_every_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("sonde.store.lock.time.monotonic", lambda: clock[0])
    heartbeat = Heartbeat(tmp_path, "r")
    file = tmp_path / ".locks" / "r.holder"
    os.utime(file, (1, 1))
    clock[0] = 4.0
    heartbeat.touch()
    assert file.stat().st_mtime == 1
    clock[0] = 5.0
    heartbeat.touch()
    assert file.stat().st_mtime > 1
    heartbeat.remove()
    heartbeat.touch()
    assert not file.exists()


def test_training_beats_at_every_step_and_a_stop_leaves_an_interrupted_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = []
    monkeypatch.setattr(
        Heartbeat, "touch", lambda heartbeat: beats.append(run_status(tmp_path / config.id, BEGUN).state)
    )
    config = tiny_config()
    train(config, runs=tmp_path, should_stop=lambda: len(beats) > 1)
    (run,) = load(tmp_path).runs
    assert run.manifest.state == "unfinished"
    assert run.status.state == "interrupted"
    assert set(beats) == {"running"}
    assert len(beats) > run.manifest.step > 0
    train(config, runs=tmp_path)
    assert load(tmp_path).runs[0].status == RunStatus("complete")


def test_a_watched_run_is_running_until_it_is_closed(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimiser, runs=tmp_path):
        assert load(tmp_path).watched[0].status == RunStatus("running")
    assert load(tmp_path).watched[0].status == RunStatus("complete")
    assert list((tmp_path / ".locks").iterdir()) == []


def test_a_watched_run_that_was_left_has_no_command_to_resume_it(tmp_path: Path) -> None:
    Journal(tmp_path, "net", {"label": "net", "model": "Net", "parameters": 3}, {"started": "now"})
    (tmp_path / ".locks" / "net.holder").unlink()
    assert load(tmp_path).watched[0].status == RunStatus("interrupted", "its process is gone; what was written stays")
