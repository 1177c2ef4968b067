"""Tables on terminals of 80 and 100 columns, and what a command says first and last."""

import io
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from conftest import Sonde
from sonde.cli import execute, terminal
from sonde.cli.store import show_command
from sonde.cli.terminal import PrintableConsole
from sonde.cli.train import QUICK_TASKS
from sonde.config import label_of
from sonde.core.errors import SondeError
from sonde.store.files import prepare_output_file
from sonde.store.listing import find_run
from sonde.studies import STUDIES
from stores import config, healthy, run, store, write

WIDTHS = pytest.mark.parametrize("width", [80, 100])


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal shows."""
    return io.StringIO()


def write_runs(root: Path, *configs: dict[str, Any]) -> Path:
    return write(store(*(run(known, healthy(known["seed"])) for known in configs)), root)


def narrow(monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, width: int) -> None:
    to = PrintableConsole(file=screen, width=width, force_terminal=True, no_color=True, highlight=False, markup=False)
    monkeypatch.setattr(terminal, "console", lambda stderr=False: to)


def lines_of(screen: io.StringIO) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).splitlines()


@WIDTHS
def test_a_paragraph_keeps_its_indent_where_it_is_wrapped(
    monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, width: int
) -> None:
    narrow(monkeypatch, screen, width)
    for indent in (0, 2):
        terminal.print_text(" " * indent + "indented " * 30)
        lines = lines_of(screen)
        assert len(lines) > 2
        assert {len(line) - len(line.lstrip()) for line in lines} == {indent}
        assert max(map(len, lines)) <= width
        screen.seek(0)
        screen.truncate()


@WIDTHS
def test_a_table_that_is_too_wide_becomes_blocks_in_which_no_word_is_broken(
    monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, width: int
) -> None:
    narrow(monkeypatch, screen, width)
    headings = {f"heading number {place} of this table": "right" for place in range(8)}
    words = ["undefined", "nevertheless", "incomprehensible"]
    terminal.print_table("Title", {"rule": "left", **headings}, [["BP", *[" ".join(words * 3)] * 8]])
    lines = lines_of(screen)
    assert max(map(len, lines)) <= width
    assert set(" ".join(lines).split()) <= {"Title", "BP", "heading", "number", "of", "this", "table"} | {
        *words,
        *map(str, range(8)),
    }


@WIDTHS
def test_show_fits_with_ids_that_commands_take_and_columns_for_what_differs(
    monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, width: int, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = write_runs(
        Path("runs"),
        *(config("state_bridge", seed, model__L=depth) for depth in (4, 8) for seed in (42, 123)),
    )
    narrow(monkeypatch, screen, width)
    show_command(runs)
    lines = lines_of(screen)
    assert max(len(line.rstrip()) for line in lines) <= width
    assert lines[0].startswith("4 runs in ")
    assert lines[1].split()[:4] == ["id", "task", "label", "model.L"]
    ids = {line.split()[0] for line in lines[2:]} - {"Bridge", "State", "left", "a", "shows"}
    assert {find_run(runs, id) for id in ids} == {path.name for path in runs.iterdir()}


@pytest.mark.parametrize(("n", "said"), [(0, "0 runs"), (1, "1 run"), (1200, "1,200 runs")])
def test_a_number_of_things_agrees_with_its_noun(n: int, said: str) -> None:
    assert terminal.plural(n, "run") == said


def test_a_file_to_write_is_no_folder_and_its_own_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(SondeError, match=r"is a folder: name a file, for example --sarif .*findings\.sarif"):
        prepare_output_file(tmp_path, "--sarif", "findings.sarif")
    assert prepare_output_file(tmp_path / "a" / "b.html", "--out", "b.html").parent.is_dir()


def test_one_run_is_one_run(tmp_path: Path, sonde: Sonde) -> None:
    write_runs(tmp_path / "runs", config())
    assert sonde("show").stdout.startswith("1 run in runs")
    (tmp_path / "empty").mkdir()
    assert sonde("show", "--runs", "empty").stdout.strip() == "no runs in empty"


def test_a_broken_run_blocks_neither_show_nor_audit_nor_report(tmp_path: Path, sonde: Sonde) -> None:
    write_runs(tmp_path / "runs", config(seed=42), config(seed=123))
    broken, whole = sorted(path.name for path in (tmp_path / "runs").iterdir())
    (tmp_path / "runs" / broken / "manifest.json").write_text("{")
    shown = sonde("show", "--json")
    assert f"left out: {broken} (" in shown.stderr
    assert {one["id"]: one["state"] for one in json.loads(shown.stdout)} == {
        whole: "complete",
        broken: "broken",
    }
    audited = sonde("audit", "--details")
    assert whole in audited.stdout
    assert broken not in audited.stdout
    sonde("report", "--no-figures")
    assert "is not JSON" in (tmp_path / "report.html").read_text()


def test_every_table_of_the_audit_says_what_d1_to_d4_are(tmp_path: Path, sonde: Sonde) -> None:
    write_runs(tmp_path / "runs", config(model__L=4), config(model__L=8))
    assert all(f"\n{name}" in sonde("audit").stdout for name in ("D1 scale", "D2 gradient", "D3 credit", "D4 blocks"))
    assert sonde("audit", "--details").stdout.count("D1: does the scale hold?") == 1


@pytest.mark.parametrize("name", STUDIES)
def test_quick_scale_on_another_task_is_known(name: str) -> None:
    tasks = {
        scale: {label_of("task", known.task) for known in STUDIES[name].configs(scale, [1])}
        for scale in ("quick", "full")
    }
    other = tasks["quick"] - tasks["full"]
    assert other == ({QUICK_TASKS[name]} if name in QUICK_TASKS else set())


def test_a_run_that_diverges_ends_with_code_1(sonde: Sonde) -> None:
    words = "--model res_mlp --task identity --epochs 2 --set optimiser.lr=1e30 --set model.L=3"
    done = sonde("train", *words.split(), "--set", "task.steps_per_epoch=3", check=False)
    assert done.returncode == 1
    assert "diverged" in done.stdout + done.stderr


def test_a_study_says_first_on_which_task_it_trains_instead(sonde: Sonde) -> None:
    done = sonde("run", "cifar10", "--only", "rule=nothing", check=False)
    assert done.stderr.startswith("sonde: cifar10, quick scale, on digits in place of CIFAR-10")
    assert not sonde("run", "residual", "--only", "rule=nothing", check=False).stderr.startswith("sonde: resid")


@pytest.mark.parametrize("words", [["run", "residual", "--foo"], ["fly"], ["compare", "--epoch", "x"]])
def test_a_mistyped_command_is_one_line(words: list[str], sonde: Sonde) -> None:
    done = sonde(*words, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"sonde: .*: see `sonde.* --help`\n", done.stderr)


def test_bars_are_wide_enough_to_see_on_80_columns() -> None:
    to = PrintableConsole(file=io.StringIO(), width=80, force_terminal=True)
    with execute._rich_bars(to) as bars:
        assert isinstance(bars, Progress)
        bars.add_task("residual_mlp-credit_bridge-digits-s42", total=10, completed=5, note="loss 0.1234")
        bars.stop()
        to.print(bars.get_renderable())
    drawn = to.file.getvalue()  # type: ignore[attr-defined]
    assert drawn.count("━") >= 10


def test_a_command_called_in_a_program_leaves_its_signals_alone(sonde: Sonde) -> None:
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    before = [signal.getsignal(getattr(signal, name)) for name in names if hasattr(signal, name)]
    sonde("list", "rules")
    assert [signal.getsignal(getattr(signal, name)) for name in names if hasattr(signal, name)] == before
