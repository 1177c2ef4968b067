"""Kill every command at any moment: nothing is lost, nothing wrong, and nothing left over when it was given again."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib as mpl
import pytest

import sonde as package
from processes import LONG, contents, epoch_of, folders, furthest, wait_for
from report_stores import write_run
from sonde.atomic import ASIDE
from sonde.store.verify import verify
from sonde.studies import STUDIES

pytestmark = pytest.mark.timeout(1800)

TRAIN = ["run", "residual", *LONG, "--runs", "trained", "--quiet"]
COMMANDS = {
    "run": [word.replace("epochs=40", "epochs=12") for word in TRAIN],
    "show": ["show", "--runs", "many"],  # writes the index
    "verify": ["verify", "--runs", "many"],
    "report": ["report", "--runs", "few", "--out", "page/report.html", "--quiet"],
    "figures": ["figures", "audit", "--runs", "few", "--out", "pictures", "--quiet"],
}
MADE = {
    "run": ["trained"],
    "show": ["many/.index"],
    "verify": [],
    "report": ["page", "cache"],
    "figures": ["pictures", "cache"],
}
"""What a command has nothing to do for if it is there."""

STORES = ("many", "few", "trained")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stores of made-up runs, one of them large enough for an index, and a folder for temporary files."""
    for config in STUDIES["audit"].configs("quick", range(18)):
        write_run(tmp_path / "many", config)
    for config in STUDIES["audit"].configs("quick", (42,)):
        write_run(tmp_path / "few", config)
    monkeypatch.setenv("MPLCONFIGDIR", mpl.get_cachedir())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Sockets lie there: their paths are short.
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as short:
        monkeypatch.setenv("TMPDIR", short)
        yield tmp_path


def start(words: list[str], place: Path, **surroundings: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sonde", *words],
        cwd=place,
        env=os.environ | surroundings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def complete(name: str, place: Path) -> float:
    """Give a command and wait for its end; the seconds it took."""
    began = time.monotonic()
    process = start(COMMANDS[name], place)
    _, said = process.communicate()
    assert process.returncode == 0, said
    return time.monotonic() - began


def killed(name: str, place: Path, after: float) -> bool:
    """Kill a command and its processes after so many seconds; whether it had not ended before."""
    with start(COMMANDS[name], place) as process:
        try:
            _, said = process.communicate(timeout=after)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return True
    assert process.returncode == 0, said
    return False


def forget(name: str, place: Path) -> None:
    for made in MADE[name]:
        shutil.rmtree(place / made, ignore_errors=True)


def assert_nothing_wrong(place: Path) -> None:
    for store in STORES:
        if (place / store).exists():
            assert verify(place / store).wrong == {}


def assert_nothing_left(place: Path) -> None:
    around = (place, Path(os.environ["TMPDIR"]))
    left = [path for folder in around for path in folder.rglob("*") if path.name.startswith((ASIDE, "pymp-"))]
    assert left == []
    for store in STORES:
        assert verify(place / store).left_over == []


def kill_often(kills: int, place: Path) -> None:
    chance = random.Random(14)
    rows = package.load(place / "few").rows
    seconds = {name: complete(name, place) for name in COMMANDS}
    whole = {folder.name: contents(folder) for folder in folders(place / "trained")}
    for name in COMMANDS:
        forget(name, place)
    reached: dict[str, int] = {}

    def assert_as_whole() -> None:
        assert {folder.name: contents(folder) for folder in folders(place / "trained")} == whole

    for kill in range(kills):
        name = list(COMMANDS)[kill % len(COMMANDS)]
        while not killed(name, place, chance.uniform(0, seconds[name])):
            seconds[name] *= 0.9
            if name == "run":
                assert_as_whole()
                reached.clear()
            forget(name, place)
        assert_nothing_wrong(place)
        now = {folder.name: epoch_of(folder) for folder in folders(place / "trained")}
        assert all(now[run] >= epoch for run, epoch in reached.items()), "an epoch was lost"
        reached |= now
    for name in COMMANDS:
        complete(name, place)
    assert_nothing_wrong(place)
    assert_nothing_left(place)
    assert package.load(place / "few").rows.equals(rows)
    assert_as_whole()


@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_commands_that_are_killed_lose_nothing_and_leave_nothing(kills: int, place: Path) -> None:
    kill_often(kills, place)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_told_to_end_says_that_it_can_be_resumed(
    number: signal.Signals, tmp_path: Path
) -> None:
    process = start(TRAIN, tmp_path)
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
    process = start(TRAIN, tmp_path)
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
    running = {name: start(COMMANDS[name], place) for name in ("show", "verify", "report", "figures")}
    again = start(COMMANDS["show"], place)
    for process in (*running.values(), again):
        _, said = process.communicate()
        assert process.returncode == 0, said
    assert_nothing_wrong(place)
    assert verify(place / "many").left_over == []
