"""The same studies on a real Ray cluster, whose nodes, driver and terminal misbehave."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sonde as package
from cluster.faulty_proxy import FaultyProxy
from cluster.s3_server import assert_same_runs
from cluster.three_nodes import STUDY, ThreeNodes, sessions, states
from conftest import Sonde, tiny_config
from processes import alive, contents, epoch_of, furthest, holder, wait_for
from sonde.cli.execute import LOG_LINES
from sonde.config import to_tree
from sonde.store.folder import read_manifest, read_tensors
from stores import forge

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), pytest.mark.xdist_group("ray")]


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study by the local engine, without an interruption."""
    folder = tmp_path_factory.mktemp("whole")
    subprocess.run([sys.executable, "-m", "sonde", "run", *STUDY, "--quiet"], cwd=folder, check=True)
    return folder / "runs"


@contextmanager
def started(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The command under way; killed at the end, if it still is."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sonde", "run", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        except AssertionError as error:
            process.kill()
            error.add_note(f"it had told: {process.communicate()[1]}")
            raise
        finally:
            process.kill()


def finish(process: subprocess.Popen[str]) -> str:
    _, stderr = process.communicate(timeout=120)
    return stderr


def assert_same(runs: Path, expected: Path) -> None:
    """Every run is complete, with the weights and rows of the local engine to the last bit."""
    ids = [run.id for run in package.load(expected).runs]
    assert states(runs) == dict.fromkeys(ids, "complete")
    for run in ids:
        assert contents(runs / run) == contents(expected / run)


def under_way(runs: Path) -> int:
    """How many runs have measured something."""
    return sum(epoch_of(runs / run) >= 0 for run in states(runs))


def visible(run: Path) -> list[Path]:
    """The files its manifest names: a worker killed after its last epoch may leave older ones to be swept."""
    return [run / name for name in ("manifest.json", *(read_manifest(run).checksums or ()))]


def assert_no_epoch_was_trained_twice(runs: Path) -> None:
    for run in states(runs):
        told = re.findall(r" epoch (\d+)/", (runs / run / "log.txt").read_text())
        assert max(Counter(told).values()) == 1


def audit_is_the_same(runs: str, sonde: Sonde, sonde_process: Sonde, tmp_path: Path, *narrowing: str) -> None:
    words = ["run", "audit", "--scale", "quick", "--no-figures", *narrowing]
    sonde(*words, "--runs", "local", "--quiet")
    done = sonde_process(*words, "--runs", runs, "--engine", "ray")
    stored = package.load(runs if "://" in runs else tmp_path / runs)
    assert len({run.config["rule"]["name"] for run in stored.runs}) == 6
    nodes = {session["node"] for run in stored.runs for session in run.manifest.sessions}
    assert len(nodes) >= 2
    for node in nodes:
        assert f" complete on {node}, loss " in done.stderr
    assert not re.search(r"ray(let)?[)\]:]|WARN|INFO", done.stderr), "Ray chatters"


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_the_quick_audit_ends_with_the_bits_of_the_local_engine(
    sonde: Sonde, sonde_process: Sonde, tmp_path: Path
) -> None:
    audit_is_the_same("ray", sonde, sonde_process, tmp_path)
    assert_same(tmp_path / "ray", tmp_path / "local")


SHORT = ["--seeds", "42", "--set", "epochs=1", "--set", "model.L=2", "--set", "probes.directions=2"]


@pytest.mark.parametrize(
    "narrowing",
    [
        pytest.param(SHORT, id="six rules"),
        pytest.param([], marks=pytest.mark.slow, id="the quick audit"),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_an_audit_in_a_bucket_whose_server_spoils_a_tenth_of_the_requests_has_the_same_bits(
    narrowing: list[str],
    bucket: str,
    unreliable: FaultyProxy,
    sonde: Sonde,
    sonde_process: Sonde,
    tmp_path: Path,
) -> None:
    spoiled = unreliable.spoiled.total()
    audit_is_the_same(f"{bucket}/runs", sonde, sonde_process, tmp_path, *narrowing)
    assert_same_runs(f"{bucket}/runs", tmp_path / "local")
    assert unreliable.spoiled.total() >= spoiled + 5


def test_a_killed_node_loses_nothing(cluster: ThreeNodes, sonde: Sonde, tmp_path: Path, whole: Path) -> None:
    runs = tmp_path / "runs"

    def victims() -> list[str]:
        """Runs well under way on a node without which there still is a cluster."""
        under_way = [run for run, state in states(runs).items() if state == "unfinished"]
        far = [run for run in under_way if epoch_of(runs / run) >= 3]
        return [run for run in far if cluster.off_head(sessions(runs, run)[-1]["node"])]

    with started(tmp_path, *STUDY, "--engine", "ray") as process:
        wait_for(lambda: bool(victims()), process)
        victim = victims()[0]
        first = sessions(runs, victim)[-1]["node"]
        cluster.kill(first)
        told = finish(process)
    assert process.returncode == 0, told
    assert_same(runs, whole)
    before, after = sessions(runs, victim)
    assert (before["node"], before["from_epoch"]) == (first, None)
    node, epoch = after["node"], after["from_epoch"]
    assert node != first
    assert epoch >= 3
    assert f"sonde: run {victim}: its worker on {first} died; on {node} it continues after epoch {epoch}\n" in told
    resumed = f"resumed after epoch {epoch} on .*, node {node}"
    assert re.search(resumed, sonde("show").stdout)
    sonde("report", "--no-figures", "--with-provenance", "--out", "report.html")
    assert re.search(resumed, (tmp_path / "report.html").read_text())


@pytest.mark.usefixtures("cluster")
def test_a_killed_driver_leaves_nobody_behind_and_the_same_command_trains_nothing_twice(
    sonde_process: Sonde, tmp_path: Path, whole: Path
) -> None:
    runs = tmp_path / "runs"
    with started(tmp_path, *STUDY, "--engine", "ray") as process:
        wait_for(lambda: "complete" in states(runs).values() and under_way(runs) == 4, process)
        workers = {holder(runs, run) for run, state in states(runs).items() if state == "unfinished"}
        process.kill()
        process.communicate()
    ended = [run for run, state in states(runs).items() if state == "complete"]
    assert len(ended) < 4, "the kill came too late to show anything"
    written = {file: file.stat().st_mtime_ns for run in ended for file in visible(runs / run)}
    again = sonde_process("run", *STUDY, "--engine", "ray")
    assert not any(map(alive, workers))
    assert again.stderr.count("already complete") >= len(ended)
    assert written == {file: file.stat().st_mtime_ns for file in written}
    assert_same(runs, whole)
    assert_no_epoch_was_trained_twice(runs)
    assert any(len(sessions(runs, run)) > 1 for run in states(runs))


@pytest.mark.parametrize("through", ["address", "client"])
def test_ctrl_c_saves_the_epoch_and_another_engine_goes_on(
    through: str, cluster: ThreeNodes, sonde: Sonde, tmp_path: Path, whole: Path
) -> None:
    runs = tmp_path / "runs"
    with started(tmp_path, *STUDY, "--engine", "ray", "--address", getattr(cluster, through)) as process:
        wait_for(lambda: furthest(runs) >= 3, process)
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does
        told = finish(process)
    assert process.returncode == 130
    under_way = re.search(r"(\d) runs? finish(es)? (its|their) epoch and saves? it; Ctrl-C again stops at once\n", told)
    assert under_way  # none where the signal came between two runs; one that was in its last epoch completes
    stopped = re.findall(r"sonde: run \S+ unfinished on \S+/\w+: stopped\n", told)
    assert len(stopped) <= int(under_way[1])
    assert "unfinished: not started" in told
    assert "Traceback" not in told
    sonde("run", *STUDY, "--quiet")
    assert_same(runs, whole)
    assert_no_epoch_was_trained_twice(runs)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_second_ctrl_c_stops_the_cluster_at_once(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    endless = ["residual", "--set", "epochs=2", "--set", "task.steps_per_epoch=1000000", "--no-figures"]
    with started(tmp_path, *endless, "--engine", "ray") as process:
        assert process.stderr is not None
        wait_for(lambda: len(list(runs.glob("*/weights-0.safetensors"))) == 3, process)
        workers = [holder(runs, run) for run in states(runs)]
        os.killpg(process.pid, signal.SIGINT)
        assert "3 runs finish their epoch" in process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT)
        assert finish(process) == "sonde: stopped; the same command resumes where it was\n"
    assert process.returncode == 130
    assert not any(map(alive, workers))


@pytest.mark.usefixtures("cluster")
def test_a_failure_names_the_run_the_node_and_the_end_of_its_log(tmp_path: Path) -> None:
    config = tiny_config()
    package.train(config, runs=tmp_path / "runs", should_stop=lambda: True)
    folder = tmp_path / "runs" / config.id
    forge(folder, "resume-0.safetensors", read_tensors(folder, "resume")[:100])
    code = f"""
from pathlib import Path
from sonde.cli.execute import execute
from sonde.config import parse

execute([parse({to_tree(config)!r})], runs=Path("runs"), data_root=None, device="auto", quiet=True, engine="ray")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    first, *rest = done.stderr.splitlines()
    assert re.match(rf"sonde: run {config.id} failed on \S+/\w+: SafetensorError: .* \(log: .*log.txt\)", first)
    log = (tmp_path / "runs" / config.id / "log.txt").read_text()
    assert re.search(r" process \d+ on .*, node \S+/\w+, resumes from epoch 0\n", log)
    assert rest[:LOG_LINES] == [f"    {line}" for line in log.splitlines()[-LOG_LINES:]]


def test_nodes_that_do_not_fit_are_named_in_one_line(cluster: ThreeNodes, tmp_path: Path) -> None:
    code = "import sonde.cli; sonde.__version__ = '0.0.9'; sonde.cli.main()"
    words = ["train", "--engine", "ray", "--address", cluster.address]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert re.fullmatch(
        rf"sonde: node \S+/\w+ has sonde {package.__version__}, here is 0.0.9: install the same there\n",
        done.stderr,
    )


def test_a_cluster_that_is_not_there_is_one_line(sonde_process: Sonde) -> None:
    done = sonde_process("train", "--engine", "ray", "--address", "127.0.0.1:1", check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("sonde: no Ray cluster at --address 127.0.0.1:1 (")


@pytest.mark.slow
def test_a_machine_without_a_cluster_starts_one_for_the_command(sonde_process: Sonde) -> None:
    done = sonde_process("train", "--epochs", "1", "--engine", "ray", "--address", "local")
    assert re.search(r" complete on \S+/\w+, loss ", done.stderr)
    assert "complete" in done.stdout


@pytest.mark.usefixtures("cluster")
def test_the_code_of_guests_travels_to_the_nodes(sonde: Sonde, sonde_process: Sonde, tmp_path: Path) -> None:
    for file in (Path(__file__).parents[1] / "plugin_files").glob("*.py"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    words = [
        *("train", "--model", "funnel.py:funnel", "--rule", "signs.py:Signs", "--task", "moons.py:moons"),
        *("--set", "probes.names+=sparsity.py:sparsity", "--epochs", "2", "--seeds", "1,2", "--quiet"),
    ]
    sonde(*words, "--runs", "local")
    sonde_process(*words, "--runs", "ray", "--engine", "ray")
    assert_same(tmp_path / "ray", tmp_path / "local")
    for run in states(tmp_path / "ray"):
        assert (tmp_path / "ray" / run / "signs.py").read_bytes() == (tmp_path / "signs.py").read_bytes()
