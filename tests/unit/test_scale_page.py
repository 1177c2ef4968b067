"""The page on what a sweep costs says what was measured."""

import json
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_the_one_of_the_stored_numbers() -> None:
    scale = runpy.run_path(str(ROOT / "benchmarks" / "scale.py"))
    numbers = json.loads((ROOT / "benchmarks" / "scale.json").read_text())
    assert (ROOT / "docs" / "scale.md").read_text() == scale["page"](numbers)
