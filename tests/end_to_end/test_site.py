"""The documentation builds without a warning, links lead somewhere, and no page asks the network for anything."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="pip install 'sonde[docs]'")
pytest.importorskip("material", reason="pip install 'sonde[docs]'")
pytest.importorskip("mkdocstrings", reason="pip install 'sonde[docs]'")
pytest.importorskip("latex2mathml", reason="pip install 'sonde[docs]'")

from sonde.analysis.explanations import EXPLANATIONS
from sonde.plugins import BUILT_IN

ROOT = Path(__file__).parents[2]
ASKS = re.compile(r'<(?:script|img|iframe|source)[^>]*\ssrc="(?:https?:)?//|<link[^>]*href="(?:https?:)?//[^>]*>')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built in a process of its own, for hooks import what they need; --strict makes a warning an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.timeout(900)
def test_no_page_asks_the_network_for_anything(site: Path) -> None:
    pages = [page for page in site.glob("**/*.html") if page.parent.name != "try"]
    assert len(pages) > 20
    asked = {page.name: found for page in pages if (found := ASKS.findall(page.read_text()))}
    assert not [link for links in asked.values() for link in links if 'rel="canonical"' not in link]


def test_equations_are_mathml(site: Path) -> None:
    page = (site / "concepts" / "growth.html").read_text()
    assert page.count("<math") > 5
    assert "arithmatex" not in page
    assert "$$" not in page


def test_every_name_that_can_be_explained_has_its_place(site: Path) -> None:
    kinds = {text.kind for text in EXPLANATIONS} | BUILT_IN.keys() - {"optimiser"}
    pages = {kind: (site / "names" / f"{kind}.html").read_text() for kind in kinds}
    for text in EXPLANATIONS:
        assert f'id="{text.name}"' in pages[text.kind], text.name
    for kind in ("model", "rule", "task", "probe"):
        for name in BUILT_IN[kind]:
            assert f'id="{name}"' in pages[kind], name


def test_every_probe_rule_question_and_diagnosis_has_a_picture_and_its_evidence(site: Path) -> None:
    named = {kind: list(BUILT_IN[kind]) for kind in ("probe", "rule")}
    for kind in ("question", "diagnosis"):
        named[kind] = [text.name for text in EXPLANATIONS if text.kind == kind]
    assert sum(map(len, named.values())) > 60
    for kind, names in named.items():
        page = (site / "names" / f"{kind}.html").read_text()
        assert "<!-- picture" not in page
        for name in names:
            assert (site / "names" / kind / f"{name}.png").read_bytes().startswith(b"\x89PNG"), name
            caption = page.partition(f'src="{kind}/{name}.png"')[2].partition("</small>")[0]
            assert re.search(r"n = \d", caption), name
            assert re.search(r"\d+ (?:epochs|steps)", caption), name
            assert re.search(r"Command: <code>(?:sonde run \w+|python docs/)", caption), name


def test_the_reference_has_every_command_and_every_public_name(site: Path) -> None:
    import sonde
    from sonde.cli import app
    from sonde.metrics.rows import SCHEMA

    commands = (site / "reference" / "commands.html").read_text()
    for command in app.registered_commands:
        assert f'id="sonde-{command.name}"' in commands
    python = (site / "reference" / "python.html").read_text()
    for name in sonde.__all__:
        if name not in BUILT_IN and f"{name}"[:-1] not in BUILT_IN:
            assert re.search(rf'id="sonde[\w.]*\.{name}"', python), name
    files = (site / "reference" / "files.html").read_text()
    assert all(f"<code>{column}</code>" in files for column in SCHEMA)


def test_the_playground_is_part_of_it(site: Path) -> None:
    assert (site / "try" / "playground.html").stat().st_size > 50_000
    assert 'href="try/playground.html"' in (site / "demo.html").read_text()
