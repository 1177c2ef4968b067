"""A worker in this process: what it sends, and how long it waits for a run that is held."""

import threading
from pathlib import Path

import sonde
from conftest import tiny_config
from sonde.config import RunConfig
from sonde.engine import Event, RunOutcome
from sonde.engine.bundles import train_bundle
from sonde.store.lock import hold

NODE = "10.0.0.7/3f2a9c1d"


def sent(config: RunConfig, runs: Path, *, patience: float = 0.0) -> list[Event | RunOutcome]:
    messages: list[Event | RunOutcome] = []
    train_bundle(
        (config,),
        runs=runs,
        data_root=None,
        device="cpu",
        send=messages.append,
        should_stop=lambda: False,
        node=NODE,
        patience=patience,
    )
    return messages


def test_all_that_is_sent_and_stored_names_the_node(tmp_path: Path, tiny: RunConfig) -> None:
    assert {message.node for message in sent(tiny, tmp_path)} == {NODE}
    (session,) = sonde.load(tmp_path)[tiny.id].manifest.sessions
    assert session["node"] == NODE
    assert f", node {NODE}, starts from the beginning" in (tmp_path / tiny.id / "log.txt").read_text()


def test_without_a_cluster_no_node_is_stored(tmp_path: Path, tiny: RunConfig) -> None:
    (session,) = sonde.train(tiny, runs=tmp_path).sessions
    assert "node" not in session


def test_a_lock_that_is_let_go_in_time_is_waited_for(tmp_path: Path) -> None:
    config = tiny_config(epochs=1)
    held, let_go = threading.Event(), threading.Event()

    def holder() -> None:
        with hold(tmp_path, config.id):
            held.set()
            let_go.wait(60)

    other = threading.Thread(target=holder)
    other.start()
    assert held.wait(60)
    try:
        refused = sent(config, tmp_path)[-1]
        assert isinstance(refused, RunOutcome)
        assert refused.state == "failed"
        assert "is held by process" in (refused.message or "")
        threading.Timer(0.5, let_go.set).start()
        trained = sent(config, tmp_path, patience=60)[-1]
        assert isinstance(trained, RunOutcome)
        assert trained.state == "complete"
    finally:
        let_go.set()
        other.join()
