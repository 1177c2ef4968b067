"""Every command and program on a tutorial or concept page runs, in the order of the page, in an empty folder."""

import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from subprocess import CompletedProcess

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    DOCS / "index.md",
    DOCS / "questions.md",
    *sorted(DOCS.glob("concepts/*.md")),
    *sorted(DOCS.glob("tutorials/*.md")),
]
NAMED = re.compile(r'"""(\w+\.py): ')
# The residual study as the page has it, with fewer steps; the slow test runs it as it stands.
FEWER = {"sonde run residual": ["--set", "epochs=2", "--set", "task.steps_per_epoch=5", "--no-figures"]}

Command = Callable[..., CompletedProcess[str]]


def blocks(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(sh|python)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


RUNNING = [page for page in PAGES if blocks(page)]


def words(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if parts := shlex.split(line, comments=True):
            yield parts


def run_page(page: Path, folder: Path, sonde: Command, fewer: dict[str, list[str]]) -> None:
    names: dict[str, object] = {"__name__": "page"}
    for kind, text in blocks(page):
        if kind == "python" and (named := NAMED.match(text)):
            (folder / named[1]).write_text(text)
        elif kind == "python":
            with chdir(folder):
                exec(compile(text, page.name, "exec"), names)
        else:
            for command, *rest in words(text):
                if command == "python":
                    with chdir(folder):
                        runpy.run_path(rest[0], run_name="__main__")
                else:
                    assert command == "sonde", f"{page.name}: the test cannot run {command}"
                    sonde(*rest, *fewer.get(" ".join([command, *rest[:2]]), []))


@pytest.fixture
def imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A program of the page may import another, as one that was started in the folder may."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.stem)
@pytest.mark.usefixtures("imports")
def test_what_a_page_says_to_run_runs(page: Path, tmp_path: Path, sonde: Command) -> None:
    run_page(page, tmp_path, sonde, FEWER)


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.stem)
@pytest.mark.usefixtures("imports")
def test_what_a_page_says_to_run_runs_as_it_stands(page: Path, tmp_path: Path, sonde: Command) -> None:
    run_page(page, tmp_path, sonde, {})


def test_every_tutorial_runs_something() -> None:
    assert {*DOCS.glob("tutorials/*.md")} <= {*RUNNING}
