"""Kill every command at any moment: nothing is lost, nothing wrong, and nothing left over when it was given again."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import md5
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from pathlib import Path

import command_worker
import matplotlib as mpl
import pytest
import torch
from torch import nn

import sonde as package
from processes import ENDLESS, LONG, PATIENCE, ArchiveServer, all_free, contents, epoch_of, folders, furthest, wait_for
from sonde.store.files import ASIDE
from sonde.store.load import verify
from sonde.studies import STUDIES
from stores import write_run
from watch_programs import plain_mlp, vectors

pytestmark = pytest.mark.timeout(3600)

SINGLE = ["--seeds", "1,2", "--set", "model.d=16", "--runs", "single", "--quiet"]
TRAIN = ["run", "residual", *LONG, "--runs", "trained", "--quiet"]
COMMANDS = {
    "run": [word.replace("epochs=40", "epochs=12") for word in TRAIN],
    "train": [*("train", "--model", "residual_mlp", "--task", "digits", "--rule", "dfa", "--epochs", "6"), *SINGLE],
    "show": ["show", "--runs", "many"],  # writes the index
    "verify": ["verify", "--runs", "many"],
    "report": ["report", "--runs", "few", "--out", "page/report.html", "--no-figures", "--quiet"],
    "figures": ["figures", "audit", "--runs", "few", "--out", "pictures", "--quiet"],
    "diagnose": ["diagnose", "watched", "--runs", "few", "--sarif", "found/found.sarif"],
    "playground": ["playground", "--out", "play/play.html", "--quiet"],
    "data fetch": ["data", "fetch", "cifar10", "--data-root", "sets", "--quiet"],
    "export runs": ["export", "--runs", "many", "--layout", "runs", "--out", "handed", "--quiet"],
}
TOOLS = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
for layout in ("csv", "parquet", "paper", *(name for name, tool in TOOLS.items() if find_spec(tool))):
    store = "drawn" if layout == "paper" else "few"
    COMMANDS[f"export {layout}"] = [
        *("export", "--runs", store, "--layout", layout, "--out", f"exported-{layout}", "--quiet")
    ]
MADE = {
    "run": ["trained"],
    "train": ["single"],
    "show": ["many/.index"],
    "verify": [],
    "report": ["page"],
    "figures": ["pictures", "cache"],
    "diagnose": ["found"],
    "playground": ["play"],
    "data fetch": ["sets"],
    "export runs": ["handed"],
} | {name: [words[words.index("--out") + 1]] for name, words in COMMANDS.items() if name.startswith("export")}
"""What a command has nothing to do for if it is there."""

ARCHIVED = random.Random(14).randbytes(40_000_000)
TRAINED = ("trained", "single")
STORES = ("many", "few", "drawn", "trained", "single")
TOUCHED = {name: words[words.index("--runs") + 1] if "--runs" in words else "few" for name, words in COMMANDS.items()}
"""Which of them each command works on."""


def watch_a_loop(runs: Path) -> None:
    model, criterion = plain_mlp(), nn.CrossEntropyLoss()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    with package.watch(model, optimiser, loss=criterion, runs=runs, name="watched"):
        for step in range(3):
            x, y = vectors(step)
            optimiser.zero_grad()
            criterion(model(x), y).backward()
            optimiser.step()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stores of made-up runs, one of them large enough for an index, and a folder for temporary files."""
    for config in STUDIES["audit"].configs("quick", range(18)):
        write_run(tmp_path / "many", config)
    for config in STUDIES["audit"].configs("quick", (42,)):
        write_run(tmp_path / "few", config)
    watch_a_loop(tmp_path / "few")
    for config in STUDIES["snapshots"].configs("quick", (42,)):
        write_run(tmp_path / "drawn", config)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # or every process compiles anew
    monkeypatch.setenv("MPLCONFIGDIR", mpl.get_cachedir())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Sockets lie there: their paths are short.
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as short:
        monkeypatch.setenv("TMPDIR", short)
        with ArchiveServer(ARCHIVED).serving() as server:
            known = {"name": "set.tar.gz", "url": server.url, "size": len(ARCHIVED), "md5": md5(ARCHIVED).hexdigest()}
            monkeypatch.setenv(command_worker.ARCHIVE, json.dumps(known))
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


def forked(words: list[str], place: Path) -> BaseProcess:
    """The same without its start: a fork of a process that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(command_worker.PRELOADED)
    names = ("TMPDIR", "MPLCONFIGDIR", "XDG_CACHE_HOME", command_worker.ARCHIVE)
    surroundings = {name: os.environ[name] for name in names}
    process = context.Process(target=command_worker.give, args=(words, place, surroundings, place / "said.txt"))
    process.start()
    return process


Begin = Callable[[list[str], Path], "subprocess.Popen[str] | BaseProcess"]


def exit_code(process: "subprocess.Popen[str] | BaseProcess", seconds: float | None) -> int | None:
    """None where it has not ended by then."""
    if isinstance(process, BaseProcess):
        process.join(seconds)
        return process.exitcode
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    return process.returncode


def complete(begin: Begin, name: str, place: Path) -> float:
    """Give a command and wait for its end; the seconds it took."""
    began = time.monotonic()
    assert exit_code(begin(COMMANDS[name], place), None) == 0
    return time.monotonic() - began


def killed(begin: Begin, name: str, place: Path, after: float) -> bool:
    """Kill a command after so many seconds; whether it had not ended before."""
    process = begin(COMMANDS[name], place)
    code = exit_code(process, after)
    if code is None:
        assert process.pid is not None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        os.kill(process.pid, signal.SIGKILL)  # it may have had no session of its own yet
        exit_code(process, None)
        wait_for(lambda: all(all_free(place / store) for store in TRAINED))  # its workers end by themselves
    else:
        assert code == 0
    return code is None


def forget(name: str, place: Path) -> None:
    for made in MADE[name]:
        shutil.rmtree(place / made, ignore_errors=True)


def trained(place: Path, *stores: str) -> dict[str, dict[str, bytes]]:
    return {folder.name: contents(folder) for store in stores or TRAINED for folder in folders(place / store)}


def assert_nothing_wrong(place: Path, stores: Iterable[str] = STORES) -> None:
    for store in stores:
        if (place / store).exists():
            assert verify(place / store).wrong == {}


def assert_nothing_left(place: Path) -> None:
    around = (place, Path(os.environ["TMPDIR"]))
    left = [path for folder in around for path in folder.rglob("*") if path.name.startswith((ASIDE, "pymp-"))]
    assert left == []
    for store in STORES:
        if (place / store).exists():
            assert verify(place / store).left_over == []
    assert list(place.glob("*/INCOMPLETE-*")) == []


def exported(name: str, place: Path) -> int:
    """How many files an export has written that have their names."""
    out = place / MADE[name][0]
    return sum(path.is_file() for path in out.rglob("*") if ASIDE not in str(path.relative_to(out)))


def fetched(place: Path) -> int:
    """How many bytes of the archive are there; it has its name only when it is complete."""
    complete, part = place / "sets" / "set.tar.gz", place / "sets" / f"{ASIDE}set.tar.gz"
    if complete.exists():
        assert complete.read_bytes() == ARCHIVED
        assert not part.exists()
        return len(ARCHIVED)
    return part.stat().st_size if part.exists() else 0


def kill_often(kills: int, names: list[str], begin: Begin, place: Path) -> None:
    chance = random.Random(14)
    rows = package.load(place / "few").rows
    seconds = {name: complete(begin, name, place) for name in names}
    whole = trained(place)
    exports = {name: exported(name, place) for name in names if name.startswith("export")}
    for name in names:
        forget(name, place)
    reached: dict[str, int] = {}

    for kill in range(kills):
        name, bytes_before = names[kill % len(names)], fetched(place)
        while not killed(begin, name, place, chance.uniform(0, seconds[name])):
            seconds[name] *= 0.9
            if TOUCHED[name] in TRAINED:
                for run, files in trained(place, TOUCHED[name]).items():
                    assert files == whole[run]
                    reached.pop(run, None)
            forget(name, place)
            bytes_before = 0
        assert_nothing_wrong(place, [TOUCHED[name]])
        out = place / MADE[name][0] if name in exports else place
        if name in exports and out.exists() and not list(out.glob("INCOMPLETE-*")):
            assert exported(name, place) in (0, exports[name]), "a partial export looks complete"
            forget(name, place)  # complete: the kill came between its last write and its end
        if name == "data fetch":
            assert fetched(place) >= bytes_before, "what was fetched was lost"
            if fetched(place) == len(ARCHIVED):
                forget(name, place)
        now = {folder.name: epoch_of(folder) for store in TRAINED for folder in folders(place / store)}
        assert all(now[run] >= epoch for run, epoch in reached.items()), "an epoch was lost"
        reached |= now
    for name in names:
        complete(begin, name, place)
    assert_nothing_wrong(place)
    assert_nothing_left(place)
    assert package.load(place / "few").rows.equals(rows)
    assert trained(place) == whole
    assert {name: exported(name, place) for name in exports} == exports
    assert fetched(place) == (len(ARCHIVED) if "data fetch" in names else 0)
    if "export runs" in exports:
        assert verify(place / "handed").wrong == {}
        assert package.load(place / "handed").rows.equals(package.load(place / "many").rows)


@pytest.mark.parametrize(
    ("kills", "names", "begin"),
    [
        (3, ["run", "export runs", "export csv"], forked),
        pytest.param(100, list(COMMANDS), forked, marks=pytest.mark.slow),
    ],
    ids=["3", "100"],
)
def test_commands_that_are_killed_lose_nothing_and_leave_nothing(
    kills: int, names: list[str], begin: Begin, place: Path
) -> None:
    kill_often(kills, names, begin, place)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_told_to_end_says_that_it_can_be_resumed(number: signal.Signals, tmp_path: Path) -> None:
    process = start(["run", "residual", *ENDLESS, "--runs", "trained", "--quiet"], tmp_path)
    wait_for(lambda: furthest(tmp_path / "trained") >= 2)
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert "the same command resumes where it was" in said
    assert "Traceback" not in said
    assert verify(tmp_path / "trained").wrong == {}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What the runs are when nothing happens."""
    place = tmp_path_factory.mktemp("undisturbed")
    complete(start, "run", place)
    return trained(place)


@pytest.mark.parametrize("seconds", [0, pytest.param(60, marks=pytest.mark.slow)])
def test_a_training_that_is_stopped_for_a_while_goes_on_as_if_nothing_had_been(
    seconds: float, tmp_path: Path, undisturbed: dict[str, dict[str, bytes]]
) -> None:
    process = start(COMMANDS["run"], tmp_path)
    wait_for(lambda: furthest(tmp_path / "trained") >= 1)
    os.killpg(process.pid, signal.SIGSTOP)
    try:
        rows = package.load(tmp_path / "trained").rows
        assert verify(tmp_path / "trained").wrong == {}
        time.sleep(seconds)
        assert package.load(tmp_path / "trained").rows.equals(rows)
    finally:
        os.killpg(process.pid, signal.SIGCONT)
    assert exit_code(process, None) == 0
    assert trained(tmp_path) == undisturbed
    assert verify(tmp_path / "trained").left_over == []


FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


@pytest.mark.skipif(FAKETIME is None, reason="apt install faketime")
def test_a_clock_that_is_set_back_by_an_hour_loses_nothing(
    tmp_path: Path, undisturbed: dict[str, dict[str, bytes]]
) -> None:
    process = start(COMMANDS["run"], tmp_path)
    wait_for(lambda: furthest(tmp_path / "trained") >= 1)
    os.killpg(process.pid, signal.SIGKILL)
    exit_code(process, None)
    clock = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": "-1h", "NO_FAKE_STAT": "1"}
    again = start(COMMANDS["run"], tmp_path, FAKETIME_DONT_FAKE_MONOTONIC="1", **clock)
    _, said = again.communicate()
    assert again.returncode == 0, said
    assert trained(tmp_path) == undisturbed
    found = verify(tmp_path / "trained")
    assert (found.wrong, found.left_over) == ({}, [])
    for run in package.load(tmp_path / "trained").runs:
        began = [session["started"] for session in run.manifest.sessions]
        assert len(began) == 1 or began[-1] < began[0], "the clock was not set back"


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
