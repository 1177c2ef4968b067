"""Many runs in real processes: killed, broken and stopped ones, and what is told of them."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import sonde as package
from conftest import Sonde, tiny_config
from processes import LONG, PATIENCE, contents, folders, furthest, holder, killing, wait_for
from sonde import engine
from sonde.cli.execute import execute
from sonde.config import RunConfig
from sonde.engine import bundles
from sonde.store.folder import read_manifest, read_tensors
from sonde.store.schemas import Manifest
from stores import forge

pytestmark = pytest.mark.timeout(600)

EPOCHS = 100  # long enough for a process to be killed on the way


def seeds(*seeds: int, epochs: int = EPOCHS) -> list[RunConfig]:
    return [tiny_config(seed=seed, epochs=epochs) for seed in seeds]


def manifest(runs: Path, config: RunConfig) -> Manifest:
    return package.load(runs)[config.id].manifest


def log(runs: Path, config: RunConfig) -> str:
    return (runs / config.id / "log.txt").read_text()


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    engine.warm_up()


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """All runs in one bundle."""
    monkeypatch.setattr(bundles, "bundle", lambda configs, **_: [tuple(configs)])


def break_resume(runs: Path, config: RunConfig) -> None:
    """Stop a run after its first epoch and damage what it would resume from."""
    package.train(config, runs=runs, should_stop=lambda: True)
    folder = runs / config.id
    forge(folder, read_manifest(folder).files["resume"], read_tensors(folder, "resume")[:100])


def test_a_run_whose_process_is_killed_is_resumed_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    configs = seeds(1, 2)
    notices: list[str] = []
    with killing(tmp_path / "runs", configs[0].id, times=1, after=3) as killed:
        outcomes = engine.run_locally(configs, runs=tmp_path / "runs", jobs=2, on_notice=notices.append)
    assert [(outcome.run, outcome.state) for outcome in outcomes] == [(c.id, "complete") for c in configs]
    package.train(configs[0], runs=tmp_path / "whole")
    assert contents(tmp_path / "runs" / configs[0].id) == contents(tmp_path / "whole" / configs[0].id)
    starts = [session["from_epoch"] for session in manifest(tmp_path / "runs", configs[0]).sessions]
    assert len(starts) == 2
    assert starts[0] is None
    assert 3 <= starts[1] < EPOCHS
    died = "its process was killed (signal 9); resuming it from its last epoch"
    assert notices == [f"run {configs[0].id}: {died}"]
    told = log(tmp_path / "runs", configs[0])
    assert re.search(rf"process {killed[0]} on .* starts from the beginning\n.* epoch 0/{EPOCHS}\n", told)
    assert re.search(rf"{re.escape(died)}\n.* process \d+ on .* resumes from epoch {starts[1]}\n", told)
    assert re.search(rf"epoch {EPOCHS}/{EPOCHS}, loss .*\n.* complete\n$", told)
    assert died not in log(tmp_path / "runs", configs[1])


def test_a_run_whose_process_dies_twice_is_marked_failed_and_the_others_go_on(tmp_path: Path, sonde: Sonde) -> None:
    runs = tmp_path / "runs"
    words = ["run", "residual", *LONG, "--jobs", "2"]
    sonde(*words, "--runs", "whole", "--quiet")
    lost, other = sorted(package.load(tmp_path / "whole").runs, key=lambda run: run.id)
    with killing(runs, lost.id, times=2, after=3):
        done = sonde(*words, check=False)
    assert done.returncode == 1
    assert f"sonde: run {lost.id}: its process was killed (signal 9); resuming it" in done.stderr
    failure = rf"sonde: run {lost.id} failed: its process was killed \(signal 9\) a second time.*\(log: (.*)\)"
    path = re.search(failure, done.stderr)
    assert path is not None
    assert "a second time" in (tmp_path / path[1]).read_text()
    assert "Traceback" not in done.stderr
    failed, complete = (package.load(runs)[run.id].manifest for run in (lost, other))
    assert failed.state == "failed"
    assert "killed (signal 9) a second time" in (failed.message or "")
    assert complete.state == "complete"
    sonde(*words)
    assert package.load(runs)[lost.id].manifest.message is None
    for run in (lost, other):
        assert contents(runs / run.id) == contents(tmp_path / "whole" / run.id)


def test_what_a_crashing_process_wrote_is_in_the_log_of_its_run(tmp_path: Path) -> None:
    (config,) = seeds(1)
    with killing(tmp_path, config.id, times=1, after=3, by=signal.SIGABRT):
        (outcome,) = engine.run_locally([config], runs=tmp_path, jobs=1)
    assert outcome.state == "complete"
    told = log(tmp_path, config)
    assert re.search(r"its process wrote:\nFatal Python error: Aborted\n", told)
    assert told.index("Aborted") < told.index("its process was killed (signal 6)")


def test_an_error_nobody_foresaw_is_shown_with_the_end_of_the_log_and_kept_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = seeds(1, 2, epochs=2)
    break_resume(tmp_path, configs[0])
    outcomes = execute(configs, runs=tmp_path, jobs=2, data_root=None, device="cpu", quiet=True)
    assert [outcome.state for outcome in outcomes] == ["failed", "complete"]
    told, shown = log(tmp_path, configs[0]), capsys.readouterr().err
    assert re.search(r"resumes from epoch 0\n.* failed: SafetensorError: .*\nTraceback", told)
    assert outcomes[0].detail is not None
    assert outcomes[0].detail in told
    path = tmp_path / configs[0].id / "log.txt"
    assert re.match(rf"sonde: run {configs[0].id} failed: SafetensorError: .* \(log: {path}\)\n", shown)
    assert f"    {told.splitlines()[-1]}\n" in shown
    assert configs[1].id not in shown
    with pytest.raises(typer.Exit) as stopped:
        execute(configs[:1], runs=tmp_path, jobs=1, data_root=None, device="cpu", quiet=True)
    assert stopped.value.exit_code == 1


@pytest.mark.usefixtures("together")
def test_an_error_in_a_bundle_is_the_failure_of_the_guilty_run_alone(tmp_path: Path) -> None:
    configs = seeds(1, 2, 3, epochs=2)
    break_resume(tmp_path, configs[1])
    notices: list[str] = []
    outcomes = engine.run_locally(configs, runs=tmp_path, jobs=2, on_notice=notices.append)
    assert [outcome.state for outcome in outcomes] == ["complete", "failed", "complete"]
    assert len(notices) == 1
    assert "SafetensorError" in notices[0]
    assert notices[0].endswith("alone")


@pytest.mark.usefixtures("together")
def test_the_runs_of_a_bundle_whose_process_dies_are_resumed_one_by_one(tmp_path: Path) -> None:
    configs = seeds(1, 2, 3)
    with killing(tmp_path / "runs", configs[-1].id, times=1, after=3):
        outcomes = engine.run_locally(configs, runs=tmp_path / "runs", jobs=2)
    assert [outcome.state for outcome in outcomes] == ["complete"] * 3
    package.train(configs[-1], runs=tmp_path / "whole")
    assert contents(tmp_path / "runs" / configs[-1].id) == contents(tmp_path / "whole" / configs[-1].id)
    assert "its process was killed (signal 9)" in log(tmp_path / "runs", configs[-1])


def test_a_second_ctrl_c_stops_everything_at_once(tmp_path: Path) -> None:
    words = ["run", "residual", "--set", "epochs=2", "--set", "task.steps_per_epoch=1000000", "--no-figures"]
    process = subprocess.Popen(
        [sys.executable, "-m", "sonde", *words, "--jobs", "2"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    wait_for(lambda: len(list(tmp_path.glob("runs/*/weights-0.safetensors"))) == 2)
    workers = [holder(tmp_path / "runs", folder.name) for folder in folders(tmp_path / "runs")]
    os.killpg(process.pid, signal.SIGINT)
    assert "2 runs finish their epoch" in process.stderr.readline()
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert stderr == "sonde: stopped; the same command resumes where it was\n"
    assert furthest(tmp_path / "runs") == 0
    for worker in workers:
        assert worker is not None
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
