"""The pages of docs/findings say what the runs beside them hold, and their commands run on that store."""

import importlib
import math
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType

import polars as pl
import pytest

from sonde.analysis.audit import audit
from sonde.analysis.recovery import rank_correlations, recovery_by_recipe
from sonde.core.formatting import number
from sonde.store.load import load, verify
from sonde.store.run import Runs
from sonde.studies import STUDIES

FINDINGS = Path(__file__).parents[2] / "docs" / "findings"
MOST_BYTES = 20_000_000
Command = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    sys.path.insert(0, str(FINDINGS))
    try:
        return importlib.import_module("write")
    finally:
        sys.path.remove(str(FINDINGS))


@pytest.fixture(scope="module")
def stored() -> Runs:
    return load(FINDINGS / "runs")


def test_the_store_is_whole_small_and_without_weights() -> None:
    assert not verify(FINDINGS / "runs").wrong
    files = [path for path in (FINDINGS / "runs").glob("[!.]*/*") if path.is_file()]  # readers may write an index
    assert {path.suffix for path in files} == {".json", ".parquet"}
    assert sum(path.stat().st_size for path in files) < MOST_BYTES


def test_every_page_is_what_the_stored_rows_say(writer: ModuleType, stored: Runs) -> None:
    for name, text in writer.pages(stored).items():
        assert (FINDINGS / name).read_text() == text, f"python {FINDINGS / 'write.py'} writes it anew"


def test_an_edited_row_changes_the_pages(writer: ModuleType, stored: Runs) -> None:
    accurate = (pl.col("metric") == "test_acc") & (pl.col("epoch") > 0)
    worse = stored.rows.with_columns(value=pl.when(accurate).then(0.9).otherwise("value"))
    changed = writer.pages(Runs(worse, stored.runs))
    for name in ("audit.md", "rules.md", "recovery.md"):
        assert changed[name] != (FINDINGS / name).read_text()


def test_the_differences_from_the_record_are_explained_by_runs(writer: ModuleType, stored: Runs) -> None:
    """Credit at a block's input costs most of the difference; a constant rate costs frozen blocks nothing after all."""
    audited = writer.audit(writer.found(stored, "audit").stored)
    assert all(writer.explanation(stored, audited, rule) is not None for rule in ("state_bridge", "fa"))
    assert all(writer.explanation(stored, audited, rule) is None for rule in ("dfa", "frozen"))
    by_rule = {(row[0], row[2]): row for row in writer.forms(stored)}
    assert by_rule["frozen", "30"][4:6] == ["37.5 %", "35.1 % (−2.42)"]
    assert by_rule["frozen", "100"][5] == "39.0 % (+0.47)"
    for row in by_rule.values():
        ours, theirs = map(int, row[3].split(", "))
        assert theirs > 0
        assert (row[4] == "not run") is (ours == 0)


def test_every_kp_run_of_the_store_is_of_todays_version(stored: Runs) -> None:
    found = [run for run in stored.runs if run.config["rule"]["name"] == "kp"]
    assert len(found) >= 2
    assert {run.config["rule"].get("version") for run in found} == {2}
    assert {run.about["rule_label"] for run in found} == {"KP"}


def test_every_figure_of_a_page_is_there() -> None:
    for page in FINDINGS.glob("*.md"):
        for picture in re.findall(r"\]\((\w+\.png)\)", page.read_text()):
            assert (FINDINGS / picture).stat().st_size > 10_000


def commands() -> list[str]:
    found = []
    for page in sorted(FINDINGS.glob("*.md")):
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            found += block.splitlines()
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the store where the commands look for it."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copytree(FINDINGS / "runs", folder / "docs" / "findings" / "runs")
    return folder


@pytest.mark.parametrize("command", commands())
@pytest.mark.usefixtures("coarse")
def test_a_command_of_the_pages_runs_and_trains_nothing(command: str, sonde: Command, place: Path) -> None:
    before = {path: path.read_bytes() for path in (place / "docs").rglob("*.parquet")}
    program, *words = shlex.split(command)
    assert program == "sonde"
    done = sonde(*words, cwd=place)
    assert "complete, loss" not in done.stdout + done.stderr, "a run was trained"
    assert {path: path.read_bytes() for path in before} == before


def test_issue_27_item_6_the_overview_counts_how_much_of_each_study_is_there(writer: ModuleType, stored: Runs) -> None:
    text = (FINDINGS / "index.md").read_text()
    for name, study in STUDIES.items():
        wanted = {config.id for config in study.configs("full", study.seeds["full"])}
        assert f"{name} {len(wanted & {run.id for run in stored.runs})} of {len(wanted)} runs" in text
    fewer = Runs(stored.rows, [run for run in stored.runs if run.config["task"]["name"] != "identity"])
    assert f"Of the {len(STUDIES)} studies, 2 (residual, audit)" in text
    assert f"Of the {len(STUDIES)} studies, 1 (audit)" in writer.at_full_scale(fewer)


def test_the_hours_of_a_study_are_those_of_its_manifests(writer: ModuleType, stored: Runs) -> None:
    for name, runs, clock, processor, cores in writer.costs(stored):
        manifests = [run.manifest for run in writer.found(stored, name).stored.runs]
        seconds = sum(manifest.seconds["train"] + manifest.seconds["probes"] for manifest in manifests)
        assert int(runs) == len(manifests)
        assert clock in (f"{seconds / 3600:.1f} h", f"{seconds / 60:.1f} minutes")
        assert processor == "not counted" or any("processor" in manifest.seconds for manifest in manifests)
        assert cores.startswith("1 thread")


def test_every_control_says_how_many_of_its_runs_are_there(writer: ModuleType, stored: Runs) -> None:
    text = (FINDINGS / "controls.md").read_text()
    for name in writer.ABOUT_CONTROLS:
        section = text.split(f"## {name}: ")[1].split("\n## ")[0]
        if writer.trained(stored, name):
            assert writer.missing_of(name, stored) in section
        else:
            assert "No run of it is stored yet" in section


def test_issue_27_item_6_shares_of_one_run_have_their_error_and_none_counts_twice(stored: Runs) -> None:
    found = recovery_by_recipe(audit(stored))
    assert all((one.share.n == 1) != math.isnan(one.test_error) for _, rules in found for one in rules if one.share.n)
    text = (FINDINGS / "recovery.md").read_text()
    assert re.search(r"\| KP \| 1 \| \d+ ± \d+ % \|", text), "one seed: the error of the test set"
    assert re.search(r"\| KP \| 3 \| \d+ % \| \d+ % to \d+ % \|", text), "three seeds: an interval"
    assert "≤ 2.0e-4" in text
    dfa = [one for recipe, rules in found for one in rules if one.rule == "dfa" and recipe.recipe["epochs"] == 12]
    assert len({round(one.share.mean, 12) for one in dfa if one.share.n}) == sum(one.share.n > 0 for one in dfa)


def test_issue_27_item_6_beside_the_nudge_stands_that_of_bp_and_what_the_stream_leaves_of_it(
    writer: ModuleType, stored: Runs
) -> None:
    audited = audit(writer.with_accuracy(stored))
    correlations = rank_correlations(audited)
    known = {one.quantity: one for one in correlations}
    nudge, of_bp = known["nudge, η = 0.01"], known["nudge of BP's gradient, η = 0.01"]
    assert nudge.correlation < of_bp.correlation < -0.7
    assert abs(nudge.given_stream) < abs(nudge.correlation)
    said = writer.foretold_sentence(correlations)
    assert all(number(value) in said for value in (nudge.correlation, of_bp.correlation, nudge.given_stream))
    assert f"{nudge.rules} different rules in {nudge.recipes} recipes" in said
    assert nudge.rules < nudge.n


def test_readme_says_of_64_and_128_blocks_what_the_study_finds(writer: ModuleType, stored: Runs) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert "only backprop (BP) is more accurate than frozen blocks, by over two standard errors" in readme
    headline, *settings = STUDIES["deep"].findings(writer.found(stored, "deep"))
    found = [one.numbers for one in settings]
    frozen = {one["value"]: one["test_acc"] for one in found if one["rule"] == "frozen"}
    assert "BP at L = 64; BP at L = 128." in headline.sentence
    for one in found:
        if one["value"] in (64, 128) and one["rule"] == "bp":
            assert one["test_acc"] > frozen[one["value"]]
        if one["rule"] in ("bp", "dfa", "frozen", "predsim"):
            assert one["n"] == 3
        else:
            assert (one["rule"], one["n"]) == ("pc", 1)
