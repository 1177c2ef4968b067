"""Commands end with one conclusion of at most 12 lines on 80 columns: the answer, how sure it is, what to do next."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Sonde
from sentences import long_sentences
from sonde.analysis.audit import audit
from sonde.analysis.comparison import compare
from sonde.analysis.conclusions import MOST_LINES, Conclusion, of_audit, of_comparison, of_recovery
from sonde.analysis.recovery import rank_correlations, recovery_by_recipe
from sonde.analysis.runs import keep
from sonde.cli.options import names_of
from sonde.core.seed_statistics import cannot_decide, t_interval
from sonde.models import MODELS
from sonde.rules import RULES
from sonde.store.load import load
from sonde.studies import STUDIES
from sonde.studies.study import gather
from sonde.tasks import TASKS
from stores import write_run

TABLES = {"study": STUDIES, "rule": RULES, "model": MODELS, "task": TASKS}


@pytest.fixture(scope="module", params=[(42,), (42, 123), (42, 123, 456)], ids=lambda seeds: f"n={len(seeds)}")
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[int, ...]]:
    """The audit study with the runs beside it, made up."""
    root = tmp_path_factory.mktemp("demo") / "runs"
    study = STUDIES["audit"]
    for config in (*study.configs("quick", request.param), *study.beside("quick", request.param)):
        write_run(root, config)
    return root, request.param


def checked(found: Conclusion, width: int = 80) -> list[str]:
    """The lines, which are few, narrow and free of long sentences."""
    lines = found.lines(width)
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= width
    for text in (found.answer, found.note, found.sure):
        assert not long_sentences(text)
    return lines


def test_every_command_concludes_in_twelve_lines_and_names_its_tasks(demo: tuple[Path, tuple[int, ...]]) -> None:
    root, seeds = demo
    stored = load(root)
    audited = audit(stored)
    for lines in (
        checked(of_audit(audited, "next")),
        checked(of_recovery(recovery_by_recipe(audited), rank_correlations(audited), "next")),
    ):
        assert "digits" in lines[0] + lines[1]
        assert "parity" in lines[0] + lines[1]
        assert any(re.match(rf"How sure: n = {len(seeds)} seed", line) for line in lines)
        assert lines[-1] == "Next: next"
    for task in ("digits", "parity"):
        of_task = keep(stored, {"task": task})
        assert task in checked(of_audit(audit(of_task), "next"))[0]
        assert checked(of_comparison(compare(of_task), "next"))[0].startswith(f"On {task}, test_acc by rule")


@pytest.mark.parametrize("beside", [True, False])
def test_a_study_concludes_with_every_rule_in_its_table(demo: tuple[Path, tuple[int, ...]], beside: bool) -> None:
    root, seeds = demo
    study = STUDIES["audit"]
    more = study.beside("quick", seeds) if beside else []
    found = study.conclusion(study.findings(gather(load(root), study.configs("quick", seeds), "runs", beside=more)))
    lines = checked(found)
    assert {row[0] for row in found.rows} == {"BP", "FA", "DFA", "State Bridge", "Credit Bridge", "frozen"}
    assert lines[0].startswith("On parity, " if beside else "Accuracy on digits")


def test_an_interval_of_two_seeds_that_includes_0_is_said_in_words(demo: tuple[Path, tuple[int, ...]]) -> None:
    root, seeds = demo
    found = compare(keep(load(root), {"task": "digits"}))
    cells = [found.difference_cells(one)[1] for one in found.differences]
    wide = [one.interval.low < 0 < one.interval.high for one in found.differences]
    assert all(
        (cell == "n = 2 seeds cannot decide") == (len(seeds) == 2 and one)
        for cell, one in zip(cells, wide, strict=True)
    )
    for cell in cells:
        assert all(abs(float(n.replace("−", "-"))) <= 1 for n in re.findall(r"[+−][\d.e-]+", cell))
    assert cannot_decide(t_interval([0.1, -0.2, 99.0]), 3, 1.0)
    assert not cannot_decide(t_interval([0.1, -0.2, 0.3]), 3, 1.0)
    assert not cannot_decide(t_interval([0.5, 0.51]), 2, 1.0)


def test_rows_that_do_not_fit_are_counted() -> None:
    rows = [[f"name {n}", str(n)] for n in range(40)]
    lines = Conclusion(
        answer="An answer.", columns={"name": "left", "n": "right"}, rows=rows, sure="s", next="x"
    ).lines()
    shown = sum(line.startswith("name ") for line in lines) - 1
    assert len(lines) == MOST_LINES
    assert f"… and {40 - shown} more: --details" in lines


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_of_a_conclusion_is_wider_than_the_terminal(width: int) -> None:
    found = Conclusion(
        answer="word " * 40,
        columns={"first": "left", "second": "right", "third": "left"},
        rows=[["a" * 12, "b" * 12, "c" * 80]],
        sure="word " * 20,
    )
    assert max(map(len, found.lines(width))) <= width


def test_an_empty_comparison_of_runs_is_still_a_conclusion(tmp_path: Path) -> None:
    config = STUDIES["audit"].configs("quick", (42,))[0]
    write_run(tmp_path, config)
    audited = audit(load(tmp_path))
    found = of_recovery(recovery_by_recipe(audited), rank_correlations(audited), "next")
    assert "No rule has a share" in checked(found)[0]


# ── `sonde show` ────────────────────────────────────────────────────────────────────────────────────
def test_show_sorts_numbers_as_numbers(tmp_path: Path, sonde: Sonde) -> None:
    for config in STUDIES["audit"].configs("quick", (456, 42, 123)):
        write_run(tmp_path / "runs", config)
    lines = [line for line in sonde("show").stdout.splitlines() if "ResMLP, DFA" in line]
    assert [int(line.split("-s")[1].split("-")[0]) for line in lines] == [42, 123, 456]


# ── completion ──────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("kind", TABLES)
def test_completion_knows_every_name_of_the_tables(kind: str) -> None:
    assert names_of(kind) == list(TABLES[kind])


@pytest.fixture
def completed(tmp_path: Path) -> Callable[..., list[str]]:
    def ask(*words: str) -> list[str]:
        code = (
            "import atexit, sys; sys.argv[0] = 'sonde'; "
            "atexit.register(lambda: 'torch' in sys.modules and print('torch')); "
            "import sonde.cli; sonde.cli.main()"
        )
        typed = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        environment = {"_SONDE_COMPLETE": "complete_bash", **typed}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=tmp_path, check=True
        )
        return done.stdout.split()

    return ask


def test_a_shell_completes_studies_rules_and_runs_without_torch(
    completed: Callable[..., list[str]], tmp_path: Path
) -> None:
    id = write_run(tmp_path / "runs", STUDIES["audit"].configs("quick", (42,))[0])
    assert completed("sonde", "run", "res") == ["residual"]
    assert completed("sonde", "train", "--rule", "state") == ["state_bridge"]
    assert completed("sonde", "diagnose", id[:8]) == [id]
    assert completed("sonde", "recompute", id[-4:]) == []
    assert completed("sonde", "rm", id.rpartition("-")[2][:4]) == [id.rpartition("-")[2]]


def test_rules_without_frozen_blocks_beside_them_are_listed_and_not_compared(
    demo: tuple[Path, tuple[int, ...]],
) -> None:
    root, seeds = demo
    study = STUDIES["rules"]
    gathered = gather(keep(load(root), {"rule": "dfa"}), STUDIES["audit"].configs("quick", seeds), "runs")
    found = study.conclusion(study.findings(gathered))
    checked(found)
    assert "no rule is compared" in found.answer
    assert {row[1] for row in found.rows} == {"DFA"}
    assert f"n = {len(seeds)} seed" in found.sure
