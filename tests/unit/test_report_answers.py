"""What a report says first follows from its runs, is labelled by what differs, and is explained."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import sonde
import stores
from sonde.analysis.evidence import Evidence
from sonde.analysis.explanations import explanations
from sonde.analysis.runs import by_recipe
from sonde.config import change
from sonde.show.report import ReportContents, answers_data, report_contents
from sonde.show.report.answers import Dots, StudyAnswer
from sonde.show.report.charts import sweep_of
from sonde.show.report.sections import Section
from sonde.studies import STUDIES
from stores import write_run, write_study


def found(root: Path) -> ReportContents:
    return report_contents(sonde.load(root), source="runs", title="t")


def answer_of(root: Path) -> StudyAnswer:
    (opening,) = found(root).answered
    return opening.answer


@pytest.mark.parametrize(
    ("frozen", "said", "unsaid"),
    [(0.5, "BP (+4", "BP gains"), (0.94, "BP gains", "BP (+4")],
)
def test_the_sentence_about_depth_follows_from_the_margin_of_bp_over_frozen_blocks(
    frozen: float, said: str, unsaid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(stores.ACCURACY, "frozen", frozen)
    write_study(tmp_path, "audit", seeds=(1, 2, 3))
    told = answer_of(tmp_path)
    assert said in told.sentence
    assert unsaid not in told.sentence
    assert "Credit Bridge (−" in told.sentence
    assert told.sure.startswith("n = 3 seeds")
    assert [dots.label for dots in told.dots][-1] == "Credit Bridge", "the most accurate first"
    assert all(len(dots.values) == 3 for dots in told.dots)
    assert told.reference is not None
    assert told.reference[1] == pytest.approx(frozen, abs=0.02)


def test_one_seed_decides_nothing_and_that_is_said(tmp_path: Path) -> None:
    write_study(tmp_path, "audit", seeds=(1,))
    told = answer_of(tmp_path)
    assert "better" not in told.sentence
    assert "undecided: BP" in told.sentence
    assert "nothing is decided" in told.sure


def test_without_frozen_blocks_the_answer_says_what_is_lacking(tmp_path: Path) -> None:
    write_study(tmp_path, "cifar10", seeds=(1, 2))
    told = answer_of(tmp_path)
    assert "BP is the most accurate" in told.sentence
    assert "frozen blocks" in told.sure
    assert told.reference is None


def test_a_report_opens_each_study_with_the_conclusion_of_the_study(tmp_path: Path) -> None:
    write_study(tmp_path, "audit", seeds=(1, 2))
    (section,) = found(tmp_path).answered
    concluded = STUDIES["audit"].conclusion(section.findings)
    assert (section.answer.sentence, section.answer.sure) == (concluded.answer, concluded.sure)


def test_a_sweep_of_widths_is_labelled_by_width_and_never_under_one_of_them(tmp_path: Path) -> None:
    config = replace(STUDIES["audit"].configs("quick", [1])[0], epochs=3)
    for width in (32, 64, 128):
        write_run(tmp_path, change(config, {"model.d": width}))
    known = found(tmp_path)
    (table,) = known.audit.tables
    assert [line[:2] for line in table.lines] == [["d = 32", "BP"], ["d = 64", "BP"], ["d = 128", "BP"]]
    assert next(iter(table.columns)) == "setting"
    assert "d =" not in table.about
    assert [said.sentence.partition(", ")[0] for said in table.sentences] == ["d = 32", "d = 64", "d = 128"]
    (opening,) = known.answered
    assert {dots.label for dots in opening.answer.dots} == {"d = 32", "d = 64", "d = 128"}
    assert "the best of 3 settings is d = " in opening.answer.sentence
    assert known.sweep.keys == ["model.d"]
    assert sorted(known.sweep.levels["model.d"]) == [32, 64, 128]


def test_runs_of_two_recipes_differ_in_a_key_of_the_sweep_however_many_keys_there_are(tmp_path: Path) -> None:
    for study in ("rules", "audit"):
        write_study(tmp_path, study, seeds=(1,))
    digits, parity = (STUDIES[study].configs("quick", [1])[0] for study in ("audit", "rules"))
    write_run(tmp_path, replace(digits, task=parity.task))
    stored = sonde.load(tmp_path)
    known = sweep_of(stored.runs, by_recipe(stored.runs), stored.rows)
    levels = set(zip(*(known.columns[key] for key in known.keys), strict=True))
    assert len(levels) == len(known.runs), "with one seed every run has a recipe of its own"
    assert {"digits", "parity"} <= set(known.levels["task"])


def test_recipes_of_one_title_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    for config in STUDIES["audit"].configs("quick", [1])[:2]:
        for lr in (0.01, 0.02):
            write_run(tmp_path, replace(change(config, {"optimiser.lr": lr}), epochs=3))
    tables = found(tmp_path).audit.tables
    assert [table.title for table in tables] == ["Pre-LN ResMLP on digits"] * 2
    assert {table.about for table in tables} == {f"d = 64, L = 4, 3 epochs, optimiser.lr = {lr}" for lr in (0.01, 0.02)}


def test_own_runs_have_figures_and_stay_out_of_the_findings(tmp_path: Path) -> None:
    for config in STUDIES["audit"].configs("quick", [1, 2]):
        write_run(tmp_path, replace(config, epochs=3))
    (section,) = found(tmp_path).sections
    assert (section.study, section.findings, section.drawn_as) == ("own runs", [], "audit")
    assert section.anchor == "own-0"
    assert len(section.runs) == 12


def test_every_word_of_the_glossary_is_what_sonde_explain_says(tmp_path: Path) -> None:
    write_study(tmp_path, "audit", seeds=(1,))
    terms = found(tmp_path).glossary
    written = {word for term in terms for word in term.words}
    assert {
        "ρ",
        "nudge",
        "null",
        "credit",
        "growth",
        "D1",
        "D2",
        "D3",
        "D4",
        "BP",
        "DFA",
        "frozen",
    } <= written
    words = [term for term in terms if term.kind in ("word", "question", "metric")]
    assert all(any(term.short == text.short for text in explanations(term.name)) for term in words)


def test_an_undefined_value_of_an_answer_is_null_and_never_a_number() -> None:
    told = StudyAnswer(
        sentence="s", sure="n = 1", dots=[Dots(label="a", style="bp", values={1: float("nan")})], axis="x"
    )
    nothing = Evidence(pl.DataFrame(), pl.DataFrame(), "runs")
    section = Section(
        study="s", scale="quick", question="q", anchor="a", answer=told, evidence=nothing, expected=1, drawn_as="s"
    )
    (data,) = answers_data([section])
    assert data["dots"][0]["values"] == [(1, None)]
