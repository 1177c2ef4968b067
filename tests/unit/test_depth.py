"""Which rules train depth: runs beside a quick study, and the sentence they answer with."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from conftest import tiny_config
from sonde.config import to_tree
from sonde.core.formatting import said_share
from sonde.show.report.answers import of_rules
from sonde.store import files
from sonde.store.load import load
from sonde.studies import STUDIES, rules
from sonde.studies.recipes import which_train_depth
from sonde.studies.rules import Cost
from sonde.studies.study import Gathered, gather
from sonde.training.credit_assignment import count_operations
from stores import write_run

QUICK = ("audit", "cifar10", "snapshots")


@pytest.mark.parametrize("study", QUICK)
def test_a_quick_study_trains_its_rules_on_parity_too_and_a_full_one_on_nothing_else(study: str) -> None:
    own, beside = (getattr(STUDIES[study], runs)("quick", (42,)) for runs in ("configs", "beside"))
    assert {config.task.label for config in beside} == {"parity"}
    rules = {type(config.rule).__name__ for config in own}
    assert {type(config.rule).__name__ for config in beside} == rules | {"Backprop", "Frozen"}
    assert not {config.id for config in own} & {config.id for config in beside}
    assert not STUDIES[study].beside("full", (42,))


def gathered(root: Path, seeds: tuple[int, ...] = (42, 123), *, beside: bool = True) -> Gathered:
    study = STUDIES["audit"]
    own, aside = study.configs("quick", seeds), study.beside("quick", seeds)
    for config in [*own, *(aside if beside else [])]:
        write_run(root, config)
    return gather(load(root), own, "runs", beside=aside)


def test_runs_beside_a_study_are_in_its_findings_and_in_no_figure(tmp_path: Path) -> None:
    found = gathered(tmp_path)
    assert set(found.evidence.runs["task"]) == {"digits"}
    assert {run.config["task"]["name"] for run in found.beside.runs} == {"parity"}
    assert not found.left_out
    first = STUDIES["audit"].findings(found)[0]
    assert first.sentence.startswith("Which rules train depth on parity?")
    assert set(first.runs) == {run.id for run in found.beside.runs}


def test_a_rule_trains_depth_where_it_recovers_most_of_what_backprop_gains_over_frozen_blocks(
    tmp_path: Path,
) -> None:
    found = gathered(tmp_path)
    (finding,) = which_train_depth(found)
    last = found.beside.rows.filter(metric="test_acc", epoch=20)
    reached = {
        rule: last.filter(pl.col("run").str.contains(f"-{rule}-"))["value"].mean() for rule in ("bp", "fa", "frozen")
    }
    share = (reached["fa"] - reached["frozen"]) / (reached["bp"] - reached["frozen"])  # type: ignore[operator]
    assert finding.numbers["shares"]["fa"] == pytest.approx(share)
    assert finding.numbers["enough"] == [rule for rule, s in finding.numbers["shares"].items() if s >= 0.9]
    assert f"FA {said_share(share)}" in finding.sentence


def test_without_runs_beside_it_a_study_says_nothing_about_depth(tmp_path: Path) -> None:
    assert not which_train_depth(gathered(tmp_path, beside=False))


def test_the_reports_answer_knows_both_tasks(tmp_path: Path) -> None:
    answer = of_rules(gathered(tmp_path), [])
    assert answer is not None
    (other,) = answer.beside
    tasks = {task for task in ("digits", "parity") for said in (answer.sentence, other) if f"on {task}" in said}
    assert tasks == {"digits", "parity"}
    alone = of_rules(gathered(tmp_path / "alone", beside=False), [])
    assert alone is not None
    assert not alone.beside


def test_a_guest_that_is_not_known_here_has_no_arithmetic_and_stops_nothing() -> None:
    tree = to_tree(tiny_config()) | {"rule": {"name": "Mine", "source": "mine.py:Mine@1f2e3d4c5b6a"}}
    assert math.isnan(Cost(SimpleNamespace(config=tree), "train").operations)


def test_operations_are_counted_once_for_a_recipe_and_again_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "user_cache", lambda kind: tmp_path / kind)
    counted: list[int] = []

    def counting(*given: Any) -> int:
        counted.append(count_operations(*given))
        return counted[-1]

    monkeypatch.setattr(rules, "count_operations", counting)
    narrow, wide = (SimpleNamespace(config=to_tree(tiny_config()), recipe=recipe) for recipe in ("narrow", "wide"))
    first, again, other = (Cost(run, "train").operations for run in (narrow, narrow, wide))
    assert len(counted) == 2
    assert first == again == counted[0]
    assert other == counted[1]
