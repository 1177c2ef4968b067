"""Stored runs: a seed counts once, what is left out says why, and an ambiguous reading is undefined."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from sonde.analysis.audit import audit
from sonde.analysis.comparison import compare
from sonde.analysis.runs import evidence_lines, keep
from sonde.config import RunConfig
from sonde.core.errors import SondeError
from sonde.core.run_ids import recipe_of
from sonde.store import readings
from sonde.store.load import load
from sonde.store.readings import Readings
from sonde.store.run import Runs
from sonde.studies import STUDIES
from sonde.studies.study import gather
from stores import config, healthy, run, store, write_run

COPY = "a-copy-of-it"


def with_a_copy() -> Runs:
    """BP and frozen under two seeds, and one of them once more under another id."""
    runs = [run(config(rule, seed), healthy(seed)) for rule in ("bp", "frozen") for seed in (42, 123)]
    first, rows = runs[0]
    return store(*runs, (replace(first, path=first.path.with_name(COPY)), rows.with_columns(run=pl.lit(COPY))))


@pytest.mark.parametrize("ask", [audit, compare])
def test_a_copy_of_a_run_under_another_id_is_not_a_second_seed(ask: Callable[[Runs], object]) -> None:
    stored = with_a_copy()
    with pytest.raises(SondeError, match=r"bp has several runs of seed 42.*nothing but their id") as refused:
        ask(stored)
    assert stored.runs[0].id in str(refused.value)
    assert COPY in str(refused.value)


def test_a_copy_that_did_not_come_to_its_end_is_left_out_as_any_other_run() -> None:
    stored = with_a_copy()
    copy = stored.runs[-1]
    unfinished = replace(copy, manifest=replace(copy.manifest, state="unfinished"))
    found = audit(Runs(stored.rows, [*stored.runs[:-1], unfinished]))
    assert found.left_out == {COPY: "it is interrupted"}
    assert found.recipes[0].rules[0].seeds == [42, 123]


def some(seeds: list[int]) -> list[RunConfig]:
    return STUDIES["audit"].configs("quick", seeds)[:2]


def test_a_run_whose_seed_was_not_asked_for_is_left_out_for_that(tmp_path: Path) -> None:
    asked, other = some([0]), some([1])
    for one in (*asked, *other):
        write_run(tmp_path, one)
    left_out = gather(load(tmp_path), asked, "runs").left_out
    assert left_out == {one.id: "seed 1 was not asked for" for one in other}


def test_a_copy_is_left_out_of_a_study_for_its_id(tmp_path: Path) -> None:
    for one in some([0]):
        write_run(tmp_path, one)
    stored = load(tmp_path)
    known = Runs(stored.rows, [*stored.runs, replace(stored.runs[0], path=Path("runs") / COPY)])
    why = gather(known, some([0]), "runs").left_out[COPY]
    assert why == "its configuration is the same, but it is stored under another id"


def test_a_stored_run_has_the_recipe_of_its_configuration(tmp_path: Path) -> None:
    asked = some([0])
    for one in asked:
        write_run(tmp_path, one)
    recipes = {known.id: recipe_of(known.config) for known in load(tmp_path).runs}
    assert recipes == {one.id: one.recipe for one in asked}
    assert [one.recipe for one in some([7])] == [one.recipe for one in asked]


def test_a_run_is_kept_by_its_variant() -> None:
    stored = store(run(config("bp", 1), healthy(1), variant="raw"), run(config("bp", 2), healthy(2), variant="scaled"))
    assert [known.config["seed"] for known in keep(stored, {"variant": "scaled"}).runs] == [2]
    assert evidence_lines(stored.runs)["variant"].to_list() == ["raw", "scaled"]


def test_a_reading_that_was_taken_twice_is_undefined() -> None:
    stored = store(run(config(), healthy(42)))
    rows = stored.rows.filter(metric="test_acc", epoch=0)
    (reading,) = Readings(pl.concat([rows, rows])).at("test_acc", epoch=0).values()
    assert reading.reason == "test_acc has several values there"
    (reading,) = Readings(rows).at("test_acc", epoch=0).values()
    assert reading.value == rows["value"].item()


def _answers(stored: Runs) -> list[object]:
    return [rule.runs for recipe in audit(stored).recipes for rule in recipe.rules]


def test_readings_are_the_same_however_many_runs_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run(config(rule, seed), healthy(seed)) for rule in ("bp", "dfa") for seed in (1, 2, 3)]
    stored = store(*runs)
    together = _answers(stored)
    monkeypatch.setattr(readings, "_ROWS_AT_ONCE", stored.rows.height // 3)
    assert _answers(stored) == together
    scattered = replace(stored, rows=stored.rows.sort("epoch", "metric", maintain_order=True))
    assert _answers(scattered) == together
    assert not any("not measured" in repr(one) for one in together)


def test_the_rows_of_some_runs_are_the_rows_that_a_filter_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = store(*(run(config(seed=seed), healthy(seed)) for seed in range(5))).rows
    wanted = {id for place, id in enumerate(rows["run"].unique(maintain_order=True)) if place in (0, 1, 3)}
    kept = rows.filter(pl.col("run").is_in(list(wanted)))
    for frame in (rows, rows.sort("epoch", maintain_order=True), pl.concat([rows[:7], rows[7:]], rechunk=False)):
        for chunk in (1, 100_000):
            monkeypatch.setattr(readings, "_CHUNK", chunk)
            assert readings.rows_of_runs(frame, wanted).equals(frame.filter(pl.col("run").is_in(list(wanted))))
    assert readings.rows_of_runs(rows, wanted).equals(kept)
    assert readings.rows_of_runs(rows, ()).equals(rows.clear())
