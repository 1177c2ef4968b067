"""`sonde playground` and the page it writes, without a browser."""

import json
import re
from importlib import resources
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sonde.cli import app
from sonde.cli.report import playground_command
from sonde.core import formatting
from sonde.core.errors import SondeError
from sonde.show.playground import ENGINE, FACTS, PAGE, RULE_COLOR, render_playground


def test_the_command_writes_one_file_and_says_its_size(tmp_path: Path) -> None:
    out = tmp_path / "new" / "lesson.html"
    result = CliRunner().invoke(app, ["playground", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert f"lesson.html: {out.stat().st_size / 1e3:.0f} kB" in result.output.replace("\n", "")
    assert out.stat().st_size <= 1_000_000


def test_a_folder_is_refused_with_what_to_type_instead(tmp_path: Path) -> None:
    with pytest.raises(SondeError, match=r"is a folder: name a file, for example --out .*playground\.html"):
        playground_command(out=tmp_path)


def test_the_page_is_the_same_each_time_and_names_nothing_outside_itself() -> None:
    page = render_playground()
    assert page == render_playground()
    addresses = set(re.findall(r"https?://[^\s\"'`]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a namespace, not a place
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=\"(?!data:)", page)


@pytest.mark.parametrize(("folder", "joined"), [("engine", ENGINE), ("page", PAGE)])
def test_every_script_of_a_folder_is_joined_once(folder: str, joined: tuple[str, ...]) -> None:
    files = resources.files("sonde.show.playground") / "assets" / folder
    assert sorted(file.name for file in files.iterdir()) == sorted(f"{name}.js" for name in joined)


def test_no_script_ends_the_element_it_stands_in() -> None:
    page = render_playground()
    assert len(re.findall(r"</script", page)) == len(re.findall(r"<script", page)) == 3


def test_the_thresholds_of_the_page_are_those_of_figures_and_findings() -> None:
    facts = json.loads(re.search(r'id="facts">(.*?)</script>', render_playground())[1])  # type: ignore[index]
    assert facts == FACTS
    assert (facts["grows"], facts["signal_exploded"]) == (formatting.GROWS, formatting.SIGNAL_EXPLODED)
    assert facts["gradient_exploded"] == formatting.GRADIENT_EXPLODED


def test_no_two_rules_share_a_colour() -> None:
    assert len(set(RULE_COLOR.values())) == len(RULE_COLOR)
