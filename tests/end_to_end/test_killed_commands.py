"""Kill every command at any moment: nothing is lost, nothing wrong, and nothing left over when it was given again."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sonde as package
from conftest import Sonde
from processes import LONG, furthest, wait_for
from report_stores import write_run
from sonde.atomic import ASIDE
from sonde.store.verify import verify
from sonde.studies import STUDIES

pytestmark = pytest.mark.timeout(3600)

COMMANDS = {
    "run": ["run", "residual", *LONG, "--runs", "trained", "--quiet"],
    "show": ["show", "--runs", "many"],  # writes the index
    "verify": ["verify", "--runs", "many"],
    "report": ["report", "--runs", "few", "--out", "page/report.html", "--quiet"],
    "figures": ["figures", "audit", "--runs", "few", "--out", "pictures", "--quiet"],
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stores of made-up runs, one of them large enough for an index, and a folder for temporary files."""
    for config in STUDIES["audit"].configs("quick", range(18)):
        write_run(tmp_path / "many", config)
    for config in STUDIES["audit"].configs("quick", (42,)):
        write_run(tmp_path / "few", config)
    with tempfile.TemporaryDirectory(
        prefix="k", dir="/tmp"
    ) as short:  # sockets lie there: their paths are short
        monkeypatch.setenv("TMPDIR", short)
        yield tmp_path


def start(name: str, place: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sonde", *COMMANDS[name]],
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def assert_nothing_wrong(place: Path) -> None:
    for store in ("many", "few", "trained"):
        if (place / store).exists():
            assert verify(place / store).wrong == {}


def assert_nothing_left(place: Path) -> None:
    folders = (place, Path(os.environ["TMPDIR"]))
    left = [
        path for folder in folders for path in folder.rglob("*") if path.name.startswith((ASIDE, "pymp-"))
    ]
    assert left == []
    for store in ("many", "few", "trained"):
        assert verify(place / store).left_over == []


def kill_often(kills: int, place: Path, sonde: Sonde) -> None:
    chance = random.Random(14)
    usual: dict[str, float] = {}
    rows = {store: package.load(place / store).rows for store in ("few",)}
    for name in COMMANDS:
        began = time.monotonic()
        process = start(name, place)
        process.communicate()
        usual[name] = time.monotonic() - began
        assert process.returncode == 0
        for path in (*place.glob("many/.index/*"), *place.glob("trained/*/*")):
            path.unlink()
        for folder in place.glob("trained/*"):
            folder.rmdir() if folder.is_dir() and not any(folder.iterdir()) else None
    done = 0
    while done < kills:
        name = chance.choice(list(COMMANDS))
        process = start(name, place)
        try:
            process.wait(chance.uniform(0, usual[name]))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            done += 1
        assert process.stderr is not None
        process.stderr.close()
        assert_nothing_wrong(place)
    for name in COMMANDS:
        process = start(name, place)
        _, said = process.communicate()
        assert process.returncode == 0, said
    assert_nothing_wrong(place)
    assert_nothing_left(place)
    assert package.load(place / "few").rows.equals(rows["few"])
    assert all(run.manifest.state == "complete" for run in package.load(place / "trained").runs)


@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_commands_that_are_killed_lose_nothing_and_leave_nothing(
    kills: int, place: Path, sonde: Sonde
) -> None:
    kill_often(kills, place, sonde)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_told_to_end_says_that_it_can_be_resumed(
    number: signal.Signals, tmp_path: Path, sonde: Sonde
) -> None:
    process = start("run", tmp_path)
    wait_for(lambda: furthest(tmp_path / "trained") >= 2)
    process.send_signal(number)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "the same command resumes where it was" in said
    assert "Traceback" not in said
    assert verify(tmp_path / "trained").wrong == {}


def together(*work: Callable[[], object]) -> None:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("readers", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_readers_beside_a_training_see_whole_states(readers: int, tmp_path: Path) -> None:
    process = start("run", tmp_path)
    wait_for(lambda: furthest(tmp_path / "trained") >= 1)
    failures: list[BaseException] = []

    def read() -> None:
        last = 0
        while process.poll() is None:
            try:
                rows = package.load(tmp_path / "trained").rows
                assert verify(tmp_path / "trained").wrong == {}
                assert rows.height >= last
                last = rows.height
            except BaseException as error:
                failures.append(error)
                return

    together(*[read] * readers)
    process.communicate()
    assert failures == []
    assert process.returncode == 0
    assert verify(tmp_path / "trained").wrong == {}


def test_commands_at_once_on_one_store_agree(place: Path) -> None:
    running = {name: start(name, place) for name in ("show", "verify", "report", "figures")}
    again = start("show", place)
    for process in (*running.values(), again):
        _, said = process.communicate()
        assert process.returncode == 0, said
    assert_nothing_wrong(place)
    assert verify(place / "many").left_over == []
