"""Watched runs on the page: every value in its place, steps left out where there are too many, reasons kept."""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn

from conftest import Sonde
from sonde.metrics.rows import WATCHED
from sonde.observe.watch import watch
from sonde.show.report import runs as reporting
from sonde.show.report.runs import WatchedSection, sampled_steps, watched_data
from sonde.store.journal import Journal
from sonde.store.run import Run
from sonde.store.schemas import Manifest
from stores import some_rows
from watch_programs import Transformer, tokens


def section(rows: list[tuple[object, ...]]) -> WatchedSection:
    frame = pl.DataFrame(
        [
            ("r", None, step, layer, metric, value, reason is None, reason, 4, module)
            for step, layer, metric, value, reason, module in rows
        ],
        schema=WATCHED,
        orient="row",
    )
    run = Run(Path("runs/r"), {"config": None, "about": {"label": "net"}}, Manifest(state="complete"))
    vars(run)["facts"] = {"modules": [{"name": "a", "type": "Linear"}]}
    return WatchedSection(run=run, rows=frame, about="", remarks=[], findings=None)


def test_values_stand_at_their_module_and_step_and_reasons_beside_them() -> None:
    rows = [
        (0, 0, "out_rms", 1.0, None, "a"),
        (0, 1, "out_rms", 2.0, None, "b"),
        (25, 0, "out_rms", 1.23456789, None, "a"),
        (25, 1, "out_rms", float("nan"), "it broke", "b"),
        (0, None, "weight_norm", 5.0, None, "a.weight"),
        (0, None, "loss", 0.5, None, None),
        (1, None, "loss", 0.4, None, None),
    ]
    (run,) = watched_data([section(rows)])["runs"]
    assert run["steps"] == [0, 25]
    assert run["modules"] == [{"name": "a", "type": "Linear"}, {"name": "b", "type": ""}]
    (metric,) = run["of_modules"]
    assert metric["v"] == [[1.0, 1.2346], [2.0, None]]
    assert metric["w"] == [(1, 1, 0)]
    assert watched_data([section(rows)])["reasons"] == ["it broke"]
    assert run["of_parameters"][0]["v"] == [[5.0, None]]
    assert run["loss"] == {"steps": [0, 1], "v": [0.5, 0.4], "w": []}


def test_of_too_many_steps_the_first_ten_and_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [*range(10), *range(25, 5000, 25)]
    kept = sampled_steps(steps, 40)
    assert 30 < len(kept) <= 40
    assert kept[:10] == list(range(10))
    assert kept[-1] == 4975
    assert sampled_steps(steps, 1000) == steps
    assert {len(sampled_steps(steps, most)) <= most for most in range(2, 200)} == {True}
    grown = sampled_steps([*steps, 5000], 40)
    assert set(kept) - set(grown) <= {4975}, "a run that grows keeps what it was shown with"
    monkeypatch.setattr(reporting, "MOST_WATCHED_VALUES", 8 * 20)
    rows = [(step, 0, "out_rms", 1.0, None, "a") for step in steps]
    (run,) = watched_data([section(rows)])["runs"]
    assert 12 < len(run["steps"]) <= 20
    assert run["watched"] == len(steps)


@pytest.mark.filterwarnings("ignore::sonde.observe.WatchWarning")
def test_the_report_of_a_watched_run_says_what_was_seen(tmp_path: Path, sonde: Sonde) -> None:
    torch.manual_seed(0)
    model, criterion = Transformer(), nn.CrossEntropyLoss()
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    with watch(model, optimiser, loss=criterion, runs=tmp_path / "runs", name="<b>tiny</b>"):
        for step in range(12):
            x, y = tokens(step)
            optimiser.zero_grad()
            criterion(model(x).flatten(0, 1), y.flatten()).backward()
            optimiser.step()
            if step == 5:
                model.head = copy.copy(model.head)
    said = sonde("report").stdout
    assert "report.html: 1 watched run, " in said
    page = (tmp_path / "report.html").read_text()
    assert "&lt;b&gt;tiny&lt;/b&gt;" in page
    assert "<b>tiny</b>" not in page
    began = re.search(r"began ([^;<]*)", page)
    assert began is not None
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC\.", began[1].strip()), "a time, and nothing for no place"
    assert "Replaced during training: head." in page
    assert "One parameter under several names: embed.weight, head.weight." in page
    assert "uses its weights without calling it: encoder.layers.0.self_attn.out_proj" in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])["watched"]  # type: ignore[index]
    assert next(module["name"] for module in data["runs"][0]["modules"]) == "embed"
    assert {metric["key"] for metric in data["runs"][0]["of_modules"]} >= {
        "out_rms",
        "grad_rms",
        "attention_entropy",
    }
    assert len(data["runs"][0]["loss"]["steps"]) == 10


def test_a_report_of_watched_runs_imports_no_torch_no_matplotlib_and_no_study(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "runs", "net", {"label": "net", "model": "Net", "parameters": 3}, {"started": "now"})
    journal.append(some_rows(0), 0)
    journal.close("complete", 1)
    code = f"""
import sys
from sonde.cli import app
try:
    app(["report", "--runs", r"{tmp_path / "runs"}", "--out", r"{tmp_path / "report.html"}", "--no-figures"])
except SystemExit as ended:
    assert not ended.code
imported = {{"torch", "matplotlib", "sonde.studies", "sonde.config"}} & sys.modules.keys()
assert not imported, imported
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "net" in (tmp_path / "report.html").read_text()
