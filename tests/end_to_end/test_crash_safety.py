"""Really kill processes, really fill a disk, and look at what is left."""

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from train_worker import train_tree

import sonde as package
from conftest import SMALL, Sonde, tiny_config
from processes import LONG, PATIENCE, all_free, contents, folders, furthest, holder, wait_for
from sonde.config import RunConfig, parse, to_tree
from sonde.engine import PRELOADED

pytestmark = pytest.mark.timeout(600)

# Long enough to be killed many times, with a state to write every few milliseconds.
RUN = to_tree(tiny_config(epochs=120))


def test_a_run_killed_thirty_times_ends_bit_identical_to_an_uninterrupted_one(tmp_path: Path) -> None:
    config = parse(RUN)
    began = time.monotonic()
    package.train(config, runs=tmp_path / "whole")
    whole_takes = time.monotonic() - began
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    moments = random.Random(7)
    runs = tmp_path / "killed"
    kills, epochs_seen = 0, []
    while kills < 30:
        worker = context.Process(target=train_tree, args=(RUN, str(runs), ready := context.Event()))
        worker.start()
        assert ready.wait(60)
        if kills % 3:
            worker.join(timeout=moments.uniform(0.0, whole_takes / 6))
        else:  # inside a run, however fast it is
            before = furthest(runs)
            wait_for(lambda worker=worker, before=before: furthest(runs) > before or worker.exitcode is not None)
        if worker.exitcode is None:
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            kills += 1
        worker.join()
        if (runs / config.id).exists():
            run = package.load(runs)[config.id]
            epochs_seen.append(-1 if run.manifest.epoch is None else run.manifest.epoch)
            if run.manifest.state == "complete":
                assert contents(runs / config.id) == contents(tmp_path / "whole" / config.id)
                shutil.rmtree(runs / config.id)
                epochs_seen.append(-1)
    package.train(config, runs=runs)
    assert contents(runs / config.id) == contents(tmp_path / "whole" / config.id)
    assert any(0 < epoch < config.epochs for epoch in epochs_seen), "no kill fell inside a run"
    assert sorted(f.name for f in (runs / config.id).iterdir()) == sorted(
        f.name for f in (tmp_path / "whole" / config.id).iterdir()
    ), "an interrupted writer left something behind"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of `LONG` when nothing happens."""
    root = tmp_path_factory.mktemp("whole")
    command = [sys.executable, "-m", "sonde", "run", "residual", *LONG, "--runs", str(root), "--quiet"]
    subprocess.run(command, cwd=root, check=True)
    return root


def test_a_killed_command_resumes_and_trains_nothing_twice(tmp_path: Path, whole: Path, sonde: Sonde) -> None:
    command = [sys.executable, "-m", "sonde", "run", "residual", *LONG, "--runs", "killed"]
    for kill in range(2):
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda kill=kill: furthest(tmp_path / "killed") >= 4 * (kill + 1))
        process.kill()  # only the command itself: its workers must not linger and hold the runs
        process.wait()
        wait_for(lambda: all_free(tmp_path / "killed"))
    reached = furthest(tmp_path / "killed")
    assert reached < 40, "the kills came too late to show anything"
    sonde(*command[3:])
    for run in package.load(tmp_path / "killed").runs:
        assert contents(run.path) == contents(whole / run.id)
        starts = [session["from_epoch"] for session in run.manifest.sessions]
        assert starts == sorted(starts, key=lambda epoch: -1 if epoch is None else epoch)
        assert starts[-1] is not None
    again = sonde(*command[3:])
    assert again.stderr.count("already complete") == 2


def test_ctrl_c_finishes_the_epoch_and_the_same_command_resumes(tmp_path: Path, whole: Path, sonde: Sonde) -> None:
    command = [sys.executable, "-m", "sonde", "run", "residual", *LONG, "--runs", "stopped"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: furthest(tmp_path / "stopped") >= 3)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "finish their epoch and save it" in stderr
    assert "the same command resumes" in stderr
    assert "Traceback" not in stderr
    sonde(*command[3:], "--quiet")
    for run in package.load(tmp_path / "stopped").runs:
        assert contents(run.path) == contents(whole / run.id)


def test_two_commands_at_once_do_not_corrupt_a_run(tmp_path: Path, whole: Path, sonde: Sonde) -> None:
    words = ["run", "residual", *LONG, "--only", "variant=raw", "--runs", "shared"]
    first = subprocess.Popen(
        [sys.executable, "-m", "sonde", *words],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: furthest(tmp_path / "shared") >= 1)
    (run,) = folders(tmp_path / "shared")
    worker = holder(tmp_path / "shared", run.name)
    assert worker is not None
    os.kill(worker, signal.SIGSTOP)  # it cannot end before the second command comes
    try:
        second = sonde(*words, check=False)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert first.wait(timeout=PATIENCE) == 0
    assert second.returncode == 1
    assert "is held by process" in second.stderr
    assert "Traceback" not in second.stderr
    assert contents(run) == contents(whole / run.name)


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A file system of 300 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk  # type: ignore[misc]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_one_clear_error_and_what_was_complete_stays_readable(small_disk: Path) -> None:
    from sonde.core.errors import SondeError

    configs = [tiny_config(seed=seed, epochs=2) for seed in range(40)]
    finished: list[RunConfig] = []

    def train_all() -> None:
        for config in configs:
            package.train(config, runs=small_disk / "runs")
            finished.append(config)

    with pytest.raises(SondeError, match=r"no space left while writing .*: free some, then give the same command"):
        train_all()
    assert finished
    stored = package.load(small_disk / "runs")
    for config in finished:
        assert stored[config.id].manifest.state == "complete"
    for config in finished[:3]:  # an unfinished run needs more room than a finished one leaves
        shutil.rmtree(small_disk / "runs" / config.id)
    package.train(configs[len(finished)], runs=small_disk / "runs")
    assert package.load(small_disk / "runs")[configs[len(finished)].id].manifest.state == "complete"


def test_a_full_disk_through_the_command_is_one_line(small_disk: Path, sonde: Sonde) -> None:
    done = sonde("run", "residual", *SMALL, "--runs", str(small_disk / "runs"), check=False)
    assert done.returncode != 0
    assert "no space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unwritable_folder_is_one_clear_error(tmp_path: Path, sonde: Sonde) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    if os.geteuid() == 0:  # permissions do not bind root: mount it read-only instead
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)], capture_output=True)
        if mounted.returncode != 0:
            pytest.skip("running as root, and nothing can be mounted here")
    else:
        folder.chmod(0o500)
    try:
        for option in ("--runs", "--out"):
            done = sonde("run", "residual", *SMALL, option, str(folder / "sub"), check=False)
            assert done.returncode == 2
            assert done.stderr.count("\n") == 1
            assert "cannot write" in done.stderr
            assert "permission denied; choose another folder" in done.stderr
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", str(folder)], check=True)
        else:
            folder.chmod(0o700)
