"""Ids that last: what 0.1.0 called its runs, today's code calls them too, and reads and keeps what it stored."""

import json
from collections.abc import Callable
from dataclasses import fields, make_dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import ClassVar

import pytest

import sonde as package
from conftest import tiny_config
from sonde import config as configuration
from sonde.config import CHOICES, Optimiser, Probing, change, label_of, parse, to_tree, younger
from sonde.config.stored import read
from sonde.core.run_ids import (
    FIRST_OPTIONS,
    OPTIMISER_OPTIONS,
    PROBE_OPTIONS,
    RUN_OPTIONS,
    VERSIONS,
    first_options,
    lasting,
    rule_label,
)
from sonde.plugins import BUILT_IN
from sonde.rules import DirectFeedback, KolenPollack, Rule
from sonde.studies import STUDIES
from sonde.training import program
from stores import COMMANDS, STORES, captions, unpack, without_checksums

IDS = json.loads((STORES / "ids.json").read_text())


@pytest.mark.parametrize("study", IDS["studies"])
def test_the_runs_of_a_study_have_the_ids_they_had_in_0_1_0(study: str) -> None:
    name, scale = study.split()
    configs = STUDIES[name].configs(scale, STUDIES[name].seeds[scale])
    assert [config.id for config in configs] == IDS["studies"][study]


@pytest.mark.parametrize(("tree", "id"), IDS["configurations"], ids=[id for _, id in IDS["configurations"]])
def test_a_configuration_has_the_id_it_had_in_0_1_0(tree: dict[str, object], id: str) -> None:
    assert parse(tree).id == id


def test_every_part_of_0_1_0_has_its_options_in_the_table() -> None:
    for part, of_part in IDS["options"].items():
        assert {name: list(FIRST_OPTIONS[part][name]) for name in of_part} == of_part


def test_every_part_of_the_record_is_there_and_every_part_keeps_the_options_that_its_ids_cover() -> None:
    for part, table in CHOICES.items():
        assert FIRST_OPTIONS[part].keys() <= table.keys()
        for name, kind in table.items():
            assert set(first_options(part, name, kind) or ()) <= {field.name for field in fields(kind)}
    assert set(OPTIMISER_OPTIONS) - {"source"} <= {field.name for field in fields(Optimiser)}
    assert set(PROBE_OPTIONS) <= {field.name for field in fields(Probing)}
    assert set(RUN_OPTIONS) <= {field.name for field in fields(configuration.RunConfig)}


def test_an_option_that_is_added_changes_no_id_until_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = make_dataclass("Newer", [("loops", int, 3)], bases=(DirectFeedback,), frozen=True, kw_only=True)
    before = tiny_config(rule=DirectFeedback()).id
    monkeypatch.setitem(CHOICES["rule"], "dfa", newer)  # type: ignore[arg-type]
    after = tiny_config(rule=newer())
    assert after.id == before
    assert "loops" not in to_tree(after)["rule"]
    assert younger(after)["rule.loops"] == 3
    other = tiny_config(rule=newer(loops=4))
    assert other.id != before
    assert parse(to_tree(other)) == other
    assert change(after, {"rule.loops": 4}) == other


def test_a_part_that_is_not_in_the_record_states_its_first_options_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `first_options` its ids cover every option; with it, an added option changes no id."""

    def ids(*options: tuple[str, type, object], **attributes: object) -> list[str]:
        kind = make_dataclass("New", options, bases=(Rule,), namespace=attributes, frozen=True, kw_only=True)
        monkeypatch.setitem(CHOICES["rule"], "new", kind)  # type: ignore[arg-type]
        assert parse(to_tree(tiny_config(rule=kind()))) == tiny_config(rule=kind())
        return [tiny_config(rule=rule).id for rule in (kind(), kind(size=3))]

    monkeypatch.setattr("sonde.plugins.BUILT_IN", {**BUILT_IN, "rule": CHOICES["rule"]})
    first = ids(("size", int, 2))
    assert len(set(first)) == 2
    assert not set(first) & set(ids(("size", int, 2), ("later", int, 0)))
    assert first == ids(("size", int, 2), ("later", int, 0), first_options=("size",))
    config = tiny_config(rule=CHOICES["rule"]["new"](size=3, later=1))
    assert younger(config)["rule.later"] == 0
    label = label_of("rule", config.rule)
    assert label == "New (size=3, later=1)", "complete when the run is trained"
    assert rule_label(label, to_tree(config)["rule"]) == label, "and taken as it is by readers"


def test_a_part_that_comes_to_mean_something_else_has_other_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    class Second(DirectFeedback):  # type: ignore[misc]
        version: ClassVar[int] = 2

    before = tiny_config(rule=DirectFeedback())
    id, tree = before.id, to_tree(before)
    monkeypatch.setitem(CHOICES["rule"], "dfa", Second)  # type: ignore[arg-type]
    after = tiny_config(rule=Second())
    assert after.id != id
    assert parse(to_tree(after)) == after
    with pytest.raises(package.SondeError, match=r"rule.version = 1: this Sonde has version 2 of dfa"):
        read(tree)
    assert parse(tree) == after  # of a user, who says no version


def test_the_table_of_versions_is_that_of_the_parts() -> None:
    found = {
        part: {
            name: kind.version
            for name, kind in table.items()
            if name in FIRST_OPTIONS[part] and hasattr(kind, "version")
        }
        for part, table in CHOICES.items()
    }
    assert {part: versions for part, versions in found.items() if versions} == VERSIONS


def test_a_run_of_kp_version_1_is_read_and_shown_as_such_and_not_recomputed(
    tmp_path: Path, sonde: Callable[..., CompletedProcess[str]]
) -> None:
    """Item 3: another rule under the same name may be neither continued nor mistaken for today's."""
    before = content(unpack("kp", tmp_path / "runs"))
    (run,) = package.load(tmp_path / "runs").runs
    assert run.about["rule_label"] == "KP (version=1)"
    assert run.label.endswith("KP (version=1)")
    now = change(tiny_config(rule=KolenPollack()), {})
    assert to_tree(now)["rule"]["version"] == 2
    (described,) = json.loads(sonde("show", "--json").stdout)
    assert described["label"].endswith("KP (version=1)")
    sonde("audit")
    sonde("report", "--no-figures")
    declined = sonde("recompute", run.id, check=False)
    assert declined.returncode == 2
    assert declined.stderr.count("\n") == 1
    assert "rule.version = 1" in declined.stderr
    assert content(tmp_path / "runs") == before


def test_what_is_left_out_is_younger_and_at_its_default() -> None:
    assert lasting({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2, "c": 4}, ("a",)) == {"a": 1, "c": 3}
    assert lasting({"a": 1}, {"a": 1}, None) == {"a": 1}


def content(store: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(store)): file.read_bytes()
        for file in sorted(store.rglob("*"))
        if file.is_file() and not file.relative_to(store).parts[0].startswith(".")
    }


@pytest.mark.parametrize("study", COMMANDS)
def test_a_store_of_0_1_0_is_read_and_nothing_of_it_is_trained_again(
    study: str, tmp_path: Path, sonde: Callable[..., CompletedProcess[str]]
) -> None:
    before = content(unpack(study, tmp_path / "runs"))
    assert len(before) > 4
    done = sonde("run", study, *COMMANDS[study], "--no-figures")
    assert done.stderr.count("already complete") == len(list((tmp_path / "runs").glob("[!.]*")))
    assert content(tmp_path / "runs") == before
    assert "complete" in sonde("show").stdout
    sonde("audit")
    factor = "model" if study == "residual" else "rule"
    metric = "train_loss" if study == "residual" else "test_acc"
    only = {"residual": ["model.weight_scale=1.0"], "snapshots": ["model=vit_mini"]}.get(study, [])
    words = [word for choice in only for word in ("--only", choice)]
    assert "How sure: " in sonde("compare", "--factor", factor, "--metric", metric, *words).stdout
    assert captions(study, COMMANDS[study], tmp_path / "runs")
    assert "runs" in sonde("report", "--no-figures").stdout
    assert content(tmp_path / "runs") == before


def test_an_unfinished_run_of_0_1_0_goes_on(tmp_path: Path) -> None:
    """Its state knows nothing of what younger versions store."""
    config = tiny_config(epochs=3)
    package.train(config, runs=tmp_path / "whole")
    package.train(config, runs=tmp_path / "old", should_stop=lambda: True)
    (state,) = (tmp_path / "old" / config.id).glob("resume-*")

    older = program.unpack(state.read_bytes())
    del older["draws"]
    state.write_bytes(program.pack(older))
    without_checksums(state.parent)
    package.train(config, runs=tmp_path / "old")
    weights = "weights.safetensors"
    assert (tmp_path / "old" / config.id / weights).read_bytes() == (
        tmp_path / "whole" / config.id / weights
    ).read_bytes()
