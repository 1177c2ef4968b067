"""The page on the audit's calibration says what was counted, and what was counted keeps what is promised."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from sonde.core.formatting import Thresholds

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
    assert sum(line["runs"] for line in lines if line["outcome"] != "hurts") >= 100
    said = [(words, n) for line in lines for words, n in line["few"].items() if words.endswith("above")]
    hurts = sum(n for words, n in said if words.startswith("hurts"))
    assert hurts <= sum(n for _, n in said) / 100
    assert sum(line["undefined"] + line["diverged"] for line in lines) == 0


def test_a_single_layer_passes_for_above_chance_about_as_rarely_as_it_should(numbers: dict[str, Any]) -> None:
    """One in 741 by one measure: of so many layers at most a few."""
    for line in numbers["strangers"]:
        for measure in ("cosine above", "rho above"):
            assert line.get(measure, 0) / line["layers"] < 0.005
        assert line["cosine above vectors"] / line["layers"] > 0.05  # what it was by random vectors


def test_the_planted_runs_fire_what_they_are_made_for(numbers: dict[str, Any]) -> None:
    slow, fast = sorted((line for line in numbers["planted"] if line["rule"] == "DFA"), key=lambda line: line["lr"])
    assert fast["D1"] == fast["runs"]
    assert slow["D2"] == fast["D2"] == 0  # their gradient is small because ‖h_L‖ is large, and resolved


def test_issue_27_item_2_on_cifar_10_no_question_fires_on_runs_that_learned(numbers: dict[str, Any]) -> None:
    lines = {line["rule"]: line for line in numbers["images"]}
    healthy = [line for line in lines.values() if line["share"] and line["share"][0] >= 0.5]
    assert {"bp", "mirror", "kp"} <= {line["rule"] for line in healthy}
    assert sum(line["runs"] for line in healthy) >= 20
    for line in (*healthy, lines["frozen"]):
        assert (line["D1"], line["D2"]) == (0, 0)
        assert line["stream"] < numbers["thresholds"]["stream"] / 5
    assert lines["dfa"]["D1"] == lines["dfa"]["runs"]
    assert all(1 - line["resolution"] < 1e-9 for line in numbers["resolved"])


def test_issue_27_item_2_where_a_question_fires_another_measure_says_the_same(
    numbers: dict[str, Any],
) -> None:
    """D1: the loss does not see the growth of h_L.  D2: along the gradient of training the loss hardly falls."""
    unseen = [change for line in numbers["planted"] for change in line["unseen"]]
    assert len(unseen) >= 7
    assert max(map(abs, unseen)) < 1e-3
    limit = numbers["thresholds"]["resolution"]
    pairs = [pair for line in numbers["rounded"] for pair in zip(line["cosines"], line["falls"], strict=True)]
    assert {cosine < limit for cosine, _ in pairs} == {True, False}
    for cosine, fall in pairs:
        assert (fall < limit) == (cosine < limit)
