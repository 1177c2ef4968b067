"""The page on the audit's calibration says what was counted, and what was counted keeps what is promised."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from sonde.audit.thresholds import Thresholds

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def numbers() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "calibration.json").read_text())
    return found


def test_the_page_is_the_one_of_the_stored_numbers(numbers: dict[str, Any]) -> None:
    calibration = runpy.run_path(str(ROOT / "benchmarks" / "calibration.py"))
    assert (ROOT / "docs" / "calibration.md").read_text() == calibration["page"](numbers)


def test_the_defaults_are_those_that_were_calibrated(numbers: dict[str, Any]) -> None:
    default = Thresholds()
    assert numbers["thresholds"] == {name: getattr(default, name) for name in numbers["thresholds"]}


def test_each_question_fires_on_at_most_1_in_100_of_at_least_100_healthy_runs(
    numbers: dict[str, Any],
) -> None:
    lines = numbers["healthy"]
    runs = sum(line["runs"] for line in lines)
    assert runs >= 100
    for question in ("D1", "D2", "D3"):
        assert sum(line[question] for line in lines) <= runs / 100
    assert not any(line["outcome"] == "hurts" for line in lines)
    assert sum(line["undefined"] + line["diverged"] for line in lines) == 0
