"""What docs/watch.md says of watching is what was measured, and their programs run."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "watch.md").read_text()


def test_the_table_of_costs_is_the_measured_one() -> None:
    spec = importlib.util.spec_from_file_location("watch_benchmark", ROOT / "benchmarks" / "watch.py")
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    found = json.loads((ROOT / "benchmarks" / "watch.json").read_text())
    for page in benchmark.PAGES:
        text = page.read_text()
        assert benchmark.placed(text, benchmark.table(found)) == text, f"{page.name}: run benchmarks/watch.py again"


def test_the_programs_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    watching, reading, checking = blocks[:3]
    known: dict[str, object] = {}
    exec(watching + reading + checking, known)
    assert "nothing is zero or not finite" in str(known["found"])
    assert (tmp_path / "runs").is_dir()


def test_every_metric_of_the_page_is_offered_in_the_report() -> None:
    from sonde.show.report.runs import OF_MODULES, OF_PARAMETERS

    table = PAGE.split("## What is recorded")[1].split("## ")[0]
    named = {name for cell in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", cell)}
    assert named == {metric.name for metric in (*OF_MODULES, *OF_PARAMETERS)} | {
        *("loss", "nonfinite", "eval_share", "target_mean", "target_spread", "success"),
        *("learning_rate", "noise_scale", "sharpness", "preconditioned_sharpness"),
    }
