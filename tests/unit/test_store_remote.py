"""Runs in an object store: visible with their manifest, whole after every interruption, read by every command."""

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import sonde
from sonde.cli import app
from sonde.config import RunConfig
from sonde.core.errors import SondeError
from sonde.store import lock
from sonde.store.files import Place
from sonde.store.folder import clean_up, commit, create_run, read_tensors, read_trained, run_exists
from sonde.store.load import verify
from sonde.store.lock import Held, hold
from sonde.store.remote import Remote
from sonde.store.schemas import Manifest
from sonde.studies import STUDIES
from sonde.training.session import EpochProgress
from stores import assert_a_reader_sees_whole_states, at, memory, rows, write_run


@pytest.fixture
def store() -> Iterator[Remote]:
    with memory():
        yield at("memory://bucket/runs")


def names(path: Remote) -> list[str]:
    return sorted(path.walk())


def test_the_same_run_comes_out_in_a_folder_and_in_an_object_store(
    store: Remote, tiny: RunConfig, tmp_path: Path
) -> None:
    sonde.train(tiny, runs=str(store))
    sonde.train(tiny, runs=tmp_path)
    local = tmp_path / tiny.id
    assert names(store / tiny.id) == sorted(file.name for file in local.iterdir())
    for file in (
        "run.json",
        "metrics.parquet",
        *(f"{name}.safetensors" for name in ("weights", "initial", "rule")),
    ):
        assert (store / tiny.id / file).read_bytes() == (local / file).read_bytes()
    assert sonde.load(str(store)).rows.equals(sonde.load(tmp_path).rows)
    assert sonde.load(str(store)).configs == sonde.load(tmp_path).configs
    epochs: list[int] = []
    sonde.train(tiny, runs=str(store), on_progress=lambda progress: epochs.append(progress.epoch))
    assert epochs == []


def test_a_run_stopped_after_every_epoch_ends_bit_identical(store: Remote, tiny: RunConfig, tmp_path: Path) -> None:
    for _ in range(tiny.epochs + 1):
        manifest = sonde.train(tiny, runs=str(store), should_stop=lambda: True)
    assert manifest.state == "complete"
    sonde.train(tiny, runs=tmp_path)
    for file in ("metrics.parquet", "weights.safetensors"):
        assert (store / tiny.id / file).read_bytes() == (tmp_path / tiny.id / file).read_bytes()


def writer(folder: Place) -> None:
    """Three states of a run, the last one its end."""
    if not run_exists(folder):
        create_run(folder, {}, {})
    manifest, _ = read_trained(folder)
    clean_up(folder, manifest)
    for epoch in range(0 if manifest.epoch is None else manifest.epoch + 1, 3):
        state = "complete" if epoch == 2 else "unfinished"
        tensors = {"weights": b"w%d" % epoch} | ({"resume": b"r%d" % epoch} if epoch < 2 else {})
        commit(folder, Manifest(state=state, epoch=epoch), rows(epoch, folder.name), tensors)  # type: ignore[arg-type]


@pytest.mark.parametrize("answered", [False, True])
def test_a_writer_interrupted_at_any_request_leaves_a_whole_state_and_the_next_one_ends_the_run(
    answered: bool, store: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Remote._ask
    requests = 0

    def stop_at(count: int) -> None:
        def counted(self: Remote, request: Any) -> Any:
            nonlocal requests
            requests += 1
            if requests == count and not answered:
                raise KeyboardInterrupt
            try:
                return ask(self, request)
            finally:
                if requests == count:
                    raise KeyboardInterrupt

        monkeypatch.setattr(Remote, "_ask", counted)

    for count in range(1, 200):
        folder = store / f"r{count}"
        requests = 0
        stop_at(count)
        try:
            writer(folder)
        except KeyboardInterrupt:
            monkeypatch.setattr(Remote, "_ask", ask)
        else:
            break
        if run_exists(folder):
            manifest, visible = read_trained(folder)
            if manifest.epoch is not None:
                assert visible["epoch"].to_list() == [manifest.epoch]
                assert read_tensors(folder, "weights") == b"w%d" % manifest.epoch
        writer(folder)
        assert names(folder) == ["manifest.json", "metrics.parquet", "run.json", "weights.safetensors"]
        assert read_tensors(folder, "weights") == b"w2"
        assert read_trained(folder)[0].state == "complete"
    assert count > 20, "the writer made fewer requests than it has objects"


def test_a_run_without_its_manifest_does_not_exist(store: Remote) -> None:
    (store / ".store").put(b"")
    (store / "r" / "run.json").put(b"{}")
    assert not run_exists(store / "r")
    assert len(sonde.load(store)) == 0


def test_a_reader_beside_a_writer_always_sees_one_whole_state(store: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    put = Remote.put

    def slowly(self: Remote, content: bytes) -> None:
        put(self, content)
        time.sleep(0.002)  # in memory a reader would hardly come between two of them

    monkeypatch.setattr(Remote, "put", slowly)
    assert_a_reader_sees_whole_states(store / "r")


def test_a_store_that_is_not_there_says_so(store: Remote) -> None:
    with pytest.raises(SondeError, match=r"^memory://bucket/runs does not exist: `sonde run STUDY --runs memory"):
        sonde.load(store)


def test_the_second_to_come_is_told_who_holds_the_run(store: Remote) -> None:
    with (
        hold(store, "r"),
        pytest.raises(Held, match=r"run r is held by process \d+ on .* since \d{4}.*: wait for it"),
        hold(store, "r"),
    ):
        pass
    assert names(store) == []
    with hold(store, "r"):
        assert names(store) == [".locks/r.json"]


def left_behind(store: Remote, **about: object) -> Remote:
    lease_of_another = store / ".locks" / "r.json"
    known = {"pid": 1, "host": "elsewhere", "since": "then", "token": "other"}
    now = datetime.now(UTC).isoformat()
    lease_of_another.put(json.dumps({**known, "renewed": now, **about}).encode())
    return lease_of_another


def test_a_lease_is_taken_over_when_it_was_not_renewed(store: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "TAKEOVER_PAUSE", 0.0)
    old = (datetime.now(UTC) - timedelta(seconds=lock.ABANDONED + 1)).isoformat()
    for about in ({"renewed": old}, {"renewed": "nonsense"}):
        at = left_behind(store, **about)
        with hold(store, "r"):
            assert json.loads(at.read_bytes())["token"] != "other"
    left_behind(store)
    with pytest.raises(Held, match="process 1 on elsewhere since then"), hold(store, "r"):
        pass


def test_a_lease_of_a_dead_process_of_this_host_is_taken_over_at_once(
    store: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    import multiprocessing
    import platform

    monkeypatch.setattr(lock, "TAKEOVER_PAUSE", 0.0)
    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()
    left_behind(store, pid=process.pid, host=platform.node())
    with hold(store, "r"):
        pass


def test_of_two_that_take_over_at_once_the_last_holds_it(store: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    left_behind(store, renewed="nonsense")
    monkeypatch.setattr("time.sleep", lambda seconds: left_behind(store, host="faster"))
    with pytest.raises(Held, match="on faster"), hold(store, "r"):
        pass


def test_a_lease_is_renewed_while_it_is_held_and_left_to_who_took_it(
    store: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "RENEWED", 0.01)
    at = store / ".locks" / "r.json"
    with hold(store, "r"):
        first = json.loads(at.read_bytes())["renewed"]
        for _ in range(500):
            if json.loads(at.read_bytes())["renewed"] != first:
                break
            threading.Event().wait(0.01)
        assert json.loads(at.read_bytes())["renewed"] > first
        left_behind(store)
        threading.Event().wait(0.1)
    assert json.loads(at.read_bytes())["token"] == "other"


def test_a_process_that_slept_past_its_lease_and_the_one_that_took_over_end_with_the_same_bits(
    store: Remote, tiny: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "TAKEOVER_PAUSE", 0.0)
    held, others = store / ".locks" / f"{tiny.id}.json", []

    def sleep(progress: EpochProgress) -> None:
        if progress.epoch == 1:
            known = json.loads(held.read_bytes())
            old = datetime.now(UTC) - timedelta(seconds=lock.ABANDONED + 1)
            held.put(json.dumps({**known, "renewed": old.isoformat()}).encode())
            others.append(sonde.train(tiny, runs=str(store)).state)

    assert sonde.train(tiny, runs=str(store), on_progress=sleep).state == "complete"
    assert others == ["complete"]
    sonde.train(tiny, runs=tmp_path)
    for file in ("metrics.parquet", "weights.safetensors"):
        assert (store / tiny.id / file).read_bytes() == (tmp_path / tiny.id / file).read_bytes()
    assert verify(store).wrong == {}
    assert verify(store).left_over == []


def test_every_reader_reads_a_url(store: Remote, tmp_path: Path) -> None:
    (store / ".store").put(b"")
    for config in STUDIES["audit"].configs("quick", (42, 123)):
        write_run(store, config)
    out = str(tmp_path)
    for words in (
        ["show"],
        ["show", "--json"],
        ["audit"],
        ["compare"],
        ["report", "--no-figures", "--out", f"{out}/report.html"],
        ["figures", "audit", "--out", out],
    ):
        done = CliRunner().invoke(app, [*words, "--runs", str(store)])
        assert done.exit_code == 0, (words, done.output, done.exception)
    assert "memory://bucket/runs" in (tmp_path / "report.html").read_text()
    assert not Path("memory:").exists()


def test_export_reads_a_url(store: Remote, tmp_path: Path) -> None:
    for config in STUDIES["cifar10"].configs("quick", (42,)):
        write_run(store, config)
    done = CliRunner().invoke(app, ["export", "--runs", str(store), "--out", str(tmp_path / "export")])
    assert done.exit_code == 0, (done.output, done.exception)
    assert list((tmp_path / "export").rglob("*.json"))
