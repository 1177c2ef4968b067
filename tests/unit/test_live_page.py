"""The latencies on docs/live.md are those that were measured."""

import json
import runpy
import statistics
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_the_page_is_the_one_of_the_stored_seconds() -> None:
    live = runpy.run_path(str(ROOT / "benchmarks" / "live.py"))
    known = json.loads((ROOT / "benchmarks" / "live.json").read_text())
    text = (ROOT / "docs" / "live.md").read_text()
    assert live["placed"](text, live["table"](known)) == text, "python benchmarks/live.py --page writes it anew"
    assert known["seconds"].keys() == live["LOOPS"].keys()
    for seconds in known["seconds"].values():
        assert f"| {len(seconds)} | {statistics.median(seconds):.2f} | {max(seconds):.2f} |" in text
