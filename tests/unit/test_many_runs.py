"""Stores of more runs than anybody reads one by one: what the report and the table of runs make of them."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from page_runs import labelled_run
from typer.testing import CliRunner

import sonde.config
from sonde.analysis import audit
from sonde.analysis.comparison import compare
from sonde.cli import app, terminal
from sonde.show import report
from sonde.show.report import AuditPart, ReportContents, make_report, render_report, report_contents
from sonde.show.report.charts import Sweep, known_metrics
from sonde.show.report.runs import FEWEST_RUNS, MOST_RUN_VALUES, MOST_RUNS, comma_list, sample
from sonde.store import run
from sonde.store.load import load
from sonde.store.run import Runs
from sonde.studies import STUDIES
from stores import made_up_rows as rows
from stores import write_run


def test_a_sample_takes_turns_over_networks_rules_and_states() -> None:
    runs = [
        labelled_run(f"{rule}-{state}-{seed}", label=rule, state=state, seed=seed)
        for rule in ("BP", "FA")
        for state, seeds in (("complete", 100), ("diverged", 1))
        for seed in range(seeds)
    ]
    chosen = sample(runs, most=6)
    assert [one.run.id for one in chosen] == [
        "BP-complete-0",
        "BP-complete-1",
        "BP-diverged-0",
        "FA-complete-0",
        "FA-complete-1",
        "FA-diverged-0",
    ]
    assert sample(runs[:6], most=6) == runs[:6]


def test_of_runs_that_measured_much_fewer_are_shown() -> None:
    runs = [labelled_run(str(seed), seed=seed) for seed in range(1000)]
    assert len(sample(runs, values=1000)) == MOST_RUNS
    assert len(sample(runs, values=1000 * MOST_RUN_VALUES // 50)) == 50
    assert len(sample(runs, values=10**12)) == FEWEST_RUNS


def test_a_page_of_ten_thousand_runs_stays_below_fifteen_megabytes() -> None:
    config = STUDIES["audit"].configs("full", [1])[0]
    measured = rows("a", config, config.epochs)
    lines = [labelled_run(f"residual_mlp-bp-cifar10-s{seed}-0123456789", seed=seed) for seed in range(10_000)]
    shown = sample(lines, values=10_000 * measured.height)
    numbers = [0.123456] * len(lines)
    every = [*known_metrics(layered=False), *known_metrics(layered=True)]
    swept = Sweep(
        keys=["model.d", "optimiser.lr", "rule"],
        levels={"model.d": [32, 64], "optimiser.lr": [1e-3, 3e-3], "rule": ["bp", "dfa"]},
        columns={key: [seed % 2 for seed in range(len(lines))] for key in ("model.d", "optimiser.lr", "rule")},
        runs=[line.run.id for line in lines],
        seeds=list(range(len(lines))),
        complete=[True] * len(lines),
        metrics=every,
        values={metric.key: numbers for metric in every},
    )
    of_shown = pl.concat([measured.with_columns(run=pl.lit(line.run.id)) for line in shown])
    found = ReportContents(
        title="many",
        source="runs",
        written="today",
        runs=lines,
        rows=of_shown,
        sections=[],
        audit=AuditPart(reason="none was asked for"),
        in_no_study={line.run.id: "it belongs to no study" for line in lines},
        remarks=[],
        sweep=swept,
    )
    assert 30 <= len(shown) <= MOST_RUNS
    whole = render_report(found, {})
    print(f"{len(whole.encode()) / 1e6:.1f} MB, {len(shown)} of {len(lines)} runs with lines")
    assert len(whole.encode()) < 15e6


def test_a_long_list_says_how_many_there_are() -> None:
    assert comma_list(range(3), None) == comma_list(range(3), 3) == "0, 1, 2"
    assert comma_list(range(2000), 2) == "0, 1, … (2,000 in all)"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("many") / "runs"
    for config in STUDIES["audit"].configs("quick", range(5)):
        write_run(root, config)
    return root


def test_a_page_is_the_same_whether_rows_are_in_memory_or_read_when_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    configs = [replace(STUDIES["audit"].configs("quick", [1])[0], epochs=3)]
    for study in ("residual", "audit"):
        configs += [*STUDIES[study].configs("quick", [1]), *STUDIES[study].beside("quick", [1])]
    for config in {config.id: config for config in configs}.values():
        write_run(root, config)
    pages, read = [], []
    for most in (10**9, 0):
        monkeypatch.setattr(report, "MOST_HELD_BYTES", most)
        stored, reader = report.read_for_report(root)
        read.append((reader is not None, stored.rows.height))
        found, drawn, html = make_report(stored, source="runs", title="t", reader=reader)
        assert sum(len(of_section.drawn) for of_section in drawn.values()) > 10
        pages.append(html.decode().replace(found.written, ""))
    (held, every), (asked, ends) = read
    assert (held, asked) == (False, True)
    assert 10 * ends < every
    assert pages[0] == pages[1]


def test_a_report_of_many_runs_shows_some_and_finds_in_all(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = []
    for most in (1000, 12):
        monkeypatch.setattr(report, "sample", partial(sample, most=most))
        monkeypatch.setattr(report, "MOST_NAMED", 3)
        out = tmp_path / f"{most}.html"
        done = CliRunner().invoke(
            app, ["report", "--no-figures", "--runs", str(runs), "--out", str(out)], catch_exceptions=False
        )
        assert done.exit_code == 0
        pages.append(out.read_text())
    whole, some = pages
    assert whole.count('<tr id="run-') == 30
    assert some.count('<tr id="run-') == 12
    assert "12 of the 30 runs are shown here" in some
    assert "are shown here" not in whole
    assert "seeds 0, 1, 2, … (5 in all)" in some
    assert ", and 2 more" in some
    for link in some.split('href="#run-')[1:]:
        assert f'id="run-{link.split(chr(34))[0]}"' in some, "a link leads nowhere"
    sentences = [line for line in whole.splitlines() if "<strong>" in line]
    assert sentences
    assert all(line in some for line in sentences)


def test_a_long_table_of_runs_reads_like_a_short_one(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown() -> list[str]:
        found = CliRunner().invoke(app, ["show", "--runs", str(runs)], catch_exceptions=False).stdout
        return [line.rstrip() for line in found.splitlines()]

    short = shown()
    monkeypatch.setattr(terminal, "RICH_LINES", 10)
    assert shown() == short


FRAMES = [(pl.DataFrame, name) for name in ("filter", "join", "partition_by", "group_by", "sort", "unique")]
ONCE_A_RECIPE = [(sonde.config, "parse"), (run, "flatten"), (audit, "margin_over_frozen")]


@pytest.mark.parametrize(
    ("ask", "counted"),
    [
        (lambda stored: report_contents(stored, source="runs", title=""), [*FRAMES, *ONCE_A_RECIPE]),
        (compare, FRAMES),
    ],
)
def test_frames_and_recipes_are_looked_at_as_often_for_many_seeds_as_for_few(
    ask: Callable[[Runs], object],
    counted: Sequence[tuple[Any, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: Counter[str] = Counter()

    def counting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return method(*args, **kwargs)

        return call

    for owner, name in counted:
        monkeypatch.setattr(owner, name, counting(name, getattr(owner, name)))
    done = []
    for seeds in (4, 12):
        root = tmp_path / str(seeds)
        for config in STUDIES["audit"].configs("quick", range(seeds)):
            write_run(root, config)
        stored = load(root)
        run._flat_recipes.clear()
        calls.clear()
        ask(stored)
        done.append(dict(calls))
    assert done[0] == done[1]
    assert done[0]["filter"] > 0
