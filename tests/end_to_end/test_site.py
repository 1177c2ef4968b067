"""The documentation builds without a warning, links lead somewhere, and no page asks the network for anything."""

import dataclasses
import html
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mkdocs", reason="pip install 'sonde[docs]'")
pytest.importorskip("material", reason="pip install 'sonde[docs]'")
pytest.importorskip("mkdocstrings", reason="pip install 'sonde[docs]'")
pytest.importorskip("latex2mathml", reason="pip install 'sonde[docs]'")

sys.path.insert(0, str(Path(__file__).parents[1] / "browser"))

from chromium import GROUP, LATENCY, chromium, missing

from sonde.analysis.explanations import EXPLANATIONS
from sonde.plugins import BUILT_IN
from sonde.studies import STUDIES

pytestmark = pytest.mark.xdist_group(GROUP)
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
    kinds = {text.kind for text in EXPLANATIONS} | BUILT_IN.keys() - {"optimiser", "rule"}
    pages = {kind: (site / "names" / f"{kind}.html").read_text() for kind in kinds}
    for text in EXPLANATIONS:
        assert f'id="{text.name}"' in pages[text.kind], text.name
    for kind in ("model", "task", "probe"):
        for name in BUILT_IN[kind]:
            assert f'id="{name}"' in pages[kind], name


def test_every_probe_rule_question_and_diagnosis_has_a_picture_and_its_evidence(site: Path) -> None:
    named = {"probe": list(BUILT_IN["probe"])}
    for kind in ("question", "diagnosis"):
        named[kind] = [text.name for text in EXPLANATIONS if text.kind == kind]
    pages = {(kind, name): site / "names" / f"{kind}.html" for kind, names in named.items() for name in names}
    pages |= {("rule", name): site / "rules" / f"{name}.html" for name in BUILT_IN["rule"]}
    assert len(pages) > 60
    for (kind, name), path in pages.items():
        page = path.read_text()
        assert "<!-- picture" not in page
        advice = f"{name} has no picture: store a run of it (a rule: in docs/rules-runs)"
        assert (site / "names" / kind / f"{name}.png").exists(), advice
        assert (site / "names" / kind / f"{name}.png").read_bytes().startswith(b"\x89PNG"), name
        caption = page.partition(f"{kind}/{name}.png")[2].partition("</small>")[0]
        assert re.search(r"n = \d", caption), name
        assert re.search(r"\d+ (?:epochs|steps)", caption), name
        assert re.search(r"Command: <code>(?:sonde run \w+|python docs/)", caption), name


def test_every_rule_has_a_page_with_its_definition_options_and_results(site: Path) -> None:
    listed = (site / "rules.html").read_text()
    for name, rule in BUILT_IN["rule"].items():
        page = (site / "rules" / f"{name}.html").read_text()
        assert "<!-- facts" not in page
        first = re.split(r"[`.:\n]", rule.__doc__ or "")[0].strip()
        assert html.escape(first, quote=False) in page, name
        assert f"rule.{dataclasses.fields(rule)[0].name}=" in page, name
        assert f'href="rules/{name}.html"' in listed, name
    assert {path.stem for path in (site / "rules").glob("*.html")} == BUILT_IN["rule"].keys()


def test_every_study_has_its_recipe_from_the_configurations(site: Path) -> None:
    page = (site / "studies.html").read_text()
    assert "<!-- recipe" not in page
    for name, study in STUDIES.items():
        section = page.partition(f'id="{name}"')[2].partition("<h2")[0]
        configs = study.configs("full", study.seeds["full"])
        assert f"<td>{len(configs) + len(study.beside('full', study.seeds['full']))}</td>" in section, name
        assert {str(config.epochs) for config in configs} <= {*re.findall(r"\d+", section)}, name


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


def complaints(page: Any) -> list[str]:
    """What the page writes to the console, or raises, from now on."""
    said: list[str] = []
    page.on("console", lambda one: said.append(one.text))
    page.on("pageerror", lambda one: said.append(str(one)))
    return said


SEEN = ("index", "commands", "rules", "rules/dfa", "tutorials/depth", "names/diagnosis", "reference/commands")


@pytest.mark.skipif(missing() is not None, reason=missing() or "")
def test_pages_work_from_files_at_every_width_and_the_search_finds(site: Path) -> None:
    """No server: no complaint on the console, nothing wider than the screen, no serious violation, and a search."""
    from axe_playwright_python.sync_playwright import Axe

    with chromium() as browser:
        for scheme, width in (("light", 1400), ("dark", 800), ("light", 390), ("dark", 390)):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.set_default_timeout(LATENCY)
            said = complaints(page)
            for name in SEEN:
                page.goto((site / f"{name}.html").as_uri())
                page.wait_for_load_state()
                assert not said, (name, said)
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, width)
                found = Axe().run(page, options={"preload": False}).response["violations"]
                worst = [
                    (one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")
                ]
                assert not worst, (name, scheme, width, worst)
            page.close()
        page = browser.new_page()
        page.set_default_timeout(LATENCY)
        page.goto((site / "rules" / "dfa.html").as_uri())
        page.locator("input.md-search__input").press_sequentially("vanishing")
        page.locator(".md-search-result__item a").first.click()
        page.wait_for_url(re.compile("(?!.*rules/dfa)"))
        assert "vanish" in page.locator("article").inner_text().lower()
