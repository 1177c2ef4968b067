"""No sentence of README and docs has more than 30 words, and README stays short.

Pages that still have longer ones are listed with their number, which may only shrink.
"""

from pathlib import Path

import pytest

from documented import PAGES, ROOT
from sentences import long_sentences

MORE = ("ARCHITECTURE.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "SUPPORT.md")
LONG = {
    "docs/findings/audit.md": 7,
    "docs/findings/index.md": 1,
    "docs/findings/residual.md": 11,
    "docs/findings/rules.md": 3,
    "docs/findings/snapshots.md": 3,
}


@pytest.mark.parametrize("name", [*PAGES, *MORE])
def test_sentences_are_short(name: str) -> None:
    found = long_sentences((ROOT / name).read_text("utf-8"))
    assert len(found) <= LONG.get(name, 0), "\n".join(found)


def test_readme_has_at_most_130_lines_and_diagnose_among_its_first_commands() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 130
    assert "sonde diagnose" in text.partition("## The commands used most")[0]


def test_every_local_link_of_the_pages_at_the_root_leads_to_a_file() -> None:
    import re

    for name in ("README.md", "CONTRIBUTING.md", *MORE):
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", (ROOT / name).read_text("utf-8")):
            assert (ROOT / target).exists(), f"{name}: {target}"


def test_the_version_is_the_same_wherever_it_is_named() -> None:
    import tomllib

    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert f"sonde-{version}-py3-none-any.whl" in (ROOT / "docs" / "installation.md").read_text("utf-8")
    assert f"## {version}\n" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_every_study_says_where_its_recipe_comes_from() -> None:
    from sonde.studies import STUDIES

    page = Path(ROOT / "docs" / "studies.md").read_text("utf-8")
    for name in STUDIES:
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert len(section.split()) > 15, f"docs/studies.md says nothing of {name}"
        assert f"<!-- recipe of {name} -->" in section
