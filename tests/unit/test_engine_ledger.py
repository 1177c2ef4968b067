from pathlib import Path

import pytest

import sonde
from conftest import tiny_config
from sonde.config import RunConfig
from sonde.engine import Event, RunOutcome
from sonde.engine.bundles import Ledger
from sonde.store.folder import append_log, read_log, read_manifest
from sonde.store.lock import hold

DIED = "its process was killed (signal 9)"


class Told:
    """A ledger, and all it said."""

    def __init__(self, runs: Path, *configs: RunConfig) -> None:
        self.events: list[Event] = []
        self.notices: list[str] = []
        self.ledger = Ledger(configs, runs=runs, on_event=self.events.append, on_notice=self.notices.append)
        self.ledger.waiting.append(tuple(self.ledger.clean_up_ended()))


@pytest.fixture
def begun(tmp_path: Path, tiny: RunConfig) -> RunConfig:
    """A run in the store, stopped at its initial state."""
    sonde.train(tiny, runs=tmp_path, should_stop=lambda: True)
    return tiny


def test_a_run_is_given_one_second_chance(tmp_path: Path, begun: RunConfig) -> None:
    told = Told(tmp_path, begun)
    told.ledger.record_end(told.ledger.begin(), {}, DIED, "")
    assert list(told.ledger.waiting) == [(begun,)]
    told.ledger.record_end(told.ledger.begin(), {}, DIED, "")
    assert not told.ledger.waiting
    (outcome,) = told.ledger.results()
    assert outcome.state == "failed"
    assert outcome.log == str(tmp_path / begun.id / "log.txt")
    manifest = read_manifest(tmp_path / begun.id)
    assert (manifest.state, manifest.message, manifest.epoch) == ("failed", outcome.message, 0)
    assert len(told.notices) == 1


def test_a_run_that_somebody_else_holds_is_not_marked(tmp_path: Path, begun: RunConfig) -> None:
    told = Told(tmp_path, begun)
    with hold(tmp_path, begun.id):
        for _ in range(2):
            told.ledger.record_end(told.ledger.begin(), {}, DIED, "")
    assert told.ledger.results()[0].state == "failed"
    assert read_manifest(tmp_path / begun.id).state == "unfinished"


def test_a_run_that_never_came_to_a_folder_has_no_log_but_its_output(tmp_path: Path, tiny: RunConfig) -> None:
    told = Told(tmp_path, tiny)
    for _ in range(2):
        told.ledger.record_end(told.ledger.begin(), {}, DIED, "std::bad_alloc")
    (outcome,) = told.ledger.results()
    assert (outcome.state, outcome.detail, outcome.log) == ("failed", "std::bad_alloc", None)
    assert not (tmp_path / tiny.id).exists()


def test_a_run_that_ended_before_its_process_died_is_taken_from_the_store(tmp_path: Path, begun: RunConfig) -> None:
    told = Told(tmp_path, begun)
    bundle = told.ledger.begin()
    sonde.train(begun, runs=tmp_path)
    told.ledger.record_end(bundle, {}, DIED, "")
    assert told.ledger.results() == [RunOutcome(run=begun.id, state="complete")]
    assert Told(tmp_path, begun).events[-1].outcome == RunOutcome(run=begun.id, state="complete", reused=True)


def test_a_failure_in_company_is_tried_alone_and_alone_it_counts(tmp_path: Path) -> None:
    first, second = (tiny_config(seed=seed) for seed in (1, 2))
    told = Told(tmp_path, first, second)
    answers = {c.id: RunOutcome(run=c.id, state="failed", message="no") for c in (first, second)}
    told.ledger.record_end(told.ledger.begin(), answers, "", "")
    assert list(told.ledger.waiting) == [(first,), (second,)]
    assert told.notices == [f"run {first.id} and 1 trained with it: no; training each alone"]
    told.ledger.record_end(told.ledger.begin(), answers, "", "")
    assert told.ledger.outcomes == {first.id: answers[first.id]}


def test_what_is_left_when_stopping_is_unfinished(tmp_path: Path, begun: RunConfig) -> None:
    never = tiny_config(seed=9)
    told = Told(tmp_path, begun)
    told.ledger.configs[never.id] = never
    bundle = told.ledger.begin()
    told.ledger.stopping = True
    told.ledger.record_end(bundle, {}, DIED, "")
    assert [(outcome.state, outcome.message) for outcome in told.ledger.results()] == [
        ("unfinished", f"{DIED}; the same command resumes it"),
        ("unfinished", "not started"),
    ]


def test_the_log_of_a_run_survives_its_later_states(tmp_path: Path, begun: RunConfig) -> None:
    folder = tmp_path / begun.id
    assert read_log(folder) == ""
    append_log(folder, "one\n")
    sonde.train(begun, runs=tmp_path)
    append_log(folder, "two\n")
    assert read_log(folder) == "one\ntwo\n"


def test_an_engine_that_tries_again_itself_gives_no_second_chance(tmp_path: Path, begun: RunConfig) -> None:
    told = Told(tmp_path, begun)
    told.ledger.remedy, told.ledger.second_chance = "give more --cpus-per-run", False
    told.ledger.record_end(told.ledger.begin(), {}, "its worker died", "")
    assert not told.ledger.waiting
    (outcome,) = told.ledger.results()
    assert outcome.state == "failed"
    assert (outcome.message or "").startswith("its worker died: give more --cpus-per-run")


def test_such_an_engine_too_tries_those_lost_in_company_alone(tmp_path: Path) -> None:
    first, second = (tiny_config(seed=seed) for seed in (1, 2))
    told = Told(tmp_path, first, second)
    told.ledger.second_chance = False
    told.ledger.record_end(told.ledger.begin(), {}, "its worker died", "")
    assert list(told.ledger.waiting) == [(first,), (second,)]
