"""The frame rates on docs/playground.md are those that were measured."""

import json
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_table_of_the_page_is_the_one_of_the_stored_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    playground = runpy.run_path(str(ROOT / "benchmarks" / "playground.py"))
    known = json.loads((ROOT / "benchmarks" / "playground.json").read_text())
    text = (ROOT / "docs" / "playground.md").read_text()
    made = playground["placed"](text, playground["table"](known))
    assert made == text, "python benchmarks/playground.py --page writes it anew"
    assert known["networks"].keys() == playground["NETWORKS"].keys()
    for name, one in known["networks"].items():
        assert f"| {name} | {one['frames_per_second']:.0f} |" in text
