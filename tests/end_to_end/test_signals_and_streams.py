"""Signals of terminals, scripts and batch systems; output that is closed, full, broken off or of another encoding."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import ENDLESS, PATIENCE, all_free, epoch_of, folders, furthest, wait_for
from sonde.store.load import verify
from sonde.studies import STUDIES
from stores import write_run

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.name != "posix", reason="signals and shells of POSIX"),
]

TRAIN = ["run", "residual", *ENDLESS, "--runs", "trained"]
SONDE = [sys.executable, "-m", "sonde"]


def start(
    words: list[str], place: Path, before: Callable[[], object] | None = None, **surroundings: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SONDE, *words],
        cwd=place,
        env=os.environ | surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=before,
    )


def like_nohup() -> None:
    """As a script starts a job in the background, after `nohup`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@pytest.mark.parametrize("whom", ["command", "group"])
def test_a_job_in_the_background_ends_when_it_is_told_to(whom: str, tmp_path: Path) -> None:
    process = start(TRAIN, tmp_path, like_nohup)
    wait_for(lambda: furthest(tmp_path / "trained") >= 2, process)
    os.killpg(process.pid, signal.SIGINT)
    os.killpg(process.pid, signal.SIGHUP)  # both are ignored
    reached = furthest(tmp_path / "trained")
    wait_for(lambda: furthest(tmp_path / "trained") > reached, process)
    (os.kill if whom == "command" else os.killpg)(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143
    assert "Traceback" not in said
    assert "killed" not in said, "a worker did not end by itself"
    assert furthest(tmp_path / "trained") > 2
    assert all_free(tmp_path / "trained")
    assert verify(tmp_path / "trained").wrong == {}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_exit_code_names_the_signal(number: signal.Signals, code: int, tmp_path: Path) -> None:
    process = start(TRAIN, tmp_path)
    wait_for(lambda: furthest(tmp_path / "trained") >= 1, process)
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert "the same command resumes where it was" in said
    assert "Traceback" not in said
    assert all(epoch_of(folder) >= 0 for folder in folders(tmp_path / "trained"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_live_page_ends_with_the_code_of_the_signal(number: signal.Signals, code: int, tmp_path: Path) -> None:
    process = start(["live", "--runs", "none"], tmp_path)
    assert process.stderr is not None
    process.stderr.readline()  # it follows
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert "Traceback" not in said


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stored")
    for config in STUDIES["audit"].configs("quick", (42,)):
        write_run(place / "runs", config)
    return place


def shell(line: str, place: Path, **surroundings: str) -> subprocess.CompletedProcess[bytes]:
    """A line of bash, in which `sonde` is the command."""
    return subprocess.run(
        ["bash", "-c", f'sonde() {{ {shlex.join(SONDE)} "$@"; }}\n{line}'],
        cwd=place,
        env=os.environ | surroundings,
        capture_output=True,
        timeout=PATIENCE,
    )


COMMANDS = ["show --runs runs", "verify --runs runs", "show --help"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_goes_away_is_no_failure(command: str, stored: Path) -> None:
    done = shell(f"sonde {command} | true; exit ${{PIPESTATUS[0]}}", stored)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("command", "closed"),
    [("show --runs runs", ">&-"), ("verify --runs runs", "2>&-"), ("--help", ">&- 2>&-")],
)
def test_closed_streams_are_no_failure(command: str, closed: str, stored: Path) -> None:
    done = shell(f"sonde {command} {closed}", stored)
    assert (done.returncode, done.stderr) == (0, b"")


def test_with_its_streams_closed_a_command_trains_and_no_output_lands_in_a_file(tmp_path: Path) -> None:
    done = shell(f"sonde {shlex.join(TRAIN).replace('epochs=100000', 'epochs=2')} <&- >&- 2>&-", tmp_path)
    assert done.returncode == 0
    found = verify(tmp_path / "trained")
    assert (found.runs, found.wrong, found.left_over) == (2, {}, [])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", COMMANDS)
def test_output_that_cannot_be_written_is_one_line_and_exit_code_2(command: str, stored: Path) -> None:
    done = shell(f"sonde {command} > /dev/full", stored)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"No space left" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_errors_that_cannot_be_written_leave_the_exit_code(stored: Path) -> None:
    assert shell("sonde show --runs runs 2> /dev/full", stored).returncode == 0
    assert shell("sonde show --runs nowhere 2> /dev/full", stored).returncode == 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_every_terminal_can_show_the_output(encoding: str, stored: Path) -> None:
    done = shell("sonde audit --runs runs", stored, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, b"")
    shown = shell("sonde show --runs runs --json", stored, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    known = json.loads(shell("sonde show --runs runs --json", stored, PYTHONIOENCODING="utf-8").stdout)
    assert json.loads(shown.stdout.decode(encoding)) == known


def test_a_path_need_not_be_unicode(stored: Path) -> None:
    for command in (
        "run residual --set model.L=2 --set epochs=1 --set task.steps_per_epoch=2 --only model=res_mlp "
        "--no-figures --runs $'st\\xffre'",
        "show --runs $'st\\xffre'",
        "report --runs $'st\\xffre' --out $'p\\xffge.html' --no-figures",
        "export --layout csv --runs $'st\\xffre' --out $'t\\xffbles'",
        "export --layout runs --runs $'st\\xffre' --out $'r\\xffns'",
        "export --layout paper --runs runs --out $'p\\xffper'",
        "figures residual --runs $'st\\xffre' --out $'f\\xff' --set model.L=2 --set epochs=1 "
        "--set task.steps_per_epoch=2 --only model=res_mlp",
    ):
        done = shell(f"sonde {command}", stored)
        assert b"Traceback" not in done.stderr, (command, done.stderr)
        assert done.returncode == 0, (command, done.stderr)
    done = shell("sonde show --runs $'no\\xffwhere'", stored)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
