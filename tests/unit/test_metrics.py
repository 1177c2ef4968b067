"""One table of metrics: it has every name that is stored, and no other file states a label, bounds or an axis."""

import ast
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import sonde
from sonde.analysis.diagnosis import DIAGNOSES
from sonde.analysis.diagnosis.run_evidence import RunEvidence
from sonde.analysis.explanations import EXPLANATIONS, documented, explanations
from sonde.core.formatting import GRADIENT_VANISHED, gradient_status
from sonde.metrics import (
    ALIASES,
    TRAINED,
    WATCHED,
    Metric,
    base_of,
    bounds_of,
    family_of,
    index_of,
    label_of,
    stored_name,
    symbol_of,
)
from sonde.metrics.probes import PROBES
from sonde.metrics.rows import WATCHED as ROWS
from sonde.metrics.rows import Reading, rows_of
from sonde.plugins import BUILT_IN
from sonde.show.report.charts import offered
from sonde.show.report.runs import OF_MODULES, OF_PARAMETERS
from sonde.store.readings import RowQuery

ROOT = Path(__file__).parents[2]
SOURCE = Path(sonde.__file__).parent
STORES = (ROOT / "docs" / "findings" / "runs", ROOT / "docs" / "examples" / "runs")
ENTRIES = [
    pytest.param(metric, id=f"{table}-{metric.name}")
    for table, metrics in (("trained", TRAINED), ("watched", WATCHED))
    for metric in metrics.values()
]
PLACED = ("network", "layer", "block", "module", "parameter")


@pytest.mark.parametrize("metric", ENTRIES)
def test_an_entry_says_all_that_is_to_be_said(metric: Metric) -> None:
    assert metric.axis in PLACED
    assert metric.bounds[0] < metric.bounds[1]
    assert metric.label == metric.label.strip() != ""
    assert metric.definition.endswith(".")
    assert metric.good.endswith(".")
    assert metric.bad.endswith(".")
    assert metric.measured or metric.probe == metric.name, "how it is measured"
    assert not metric.log or metric.bounds[0] >= 0 or metric.bounds == (-math.inf, math.inf)


@pytest.mark.parametrize("table", [TRAINED, WATCHED], ids=["trained", "watched"])
def test_no_two_metrics_share_a_label_or_a_symbol(table: dict[str, Metric]) -> None:
    assert all(name == metric.name for name, metric in table.items())
    for shown in ("label", "symbol"):
        said = [getattr(metric, shown) for metric in table.values() if getattr(metric, shown)]
        assert len(set(said)) == len(said), shown


def stored_names() -> Iterator[tuple[str, str | None, str]]:
    """Of every row of the published stores: its metric, where it stands and in which store."""
    for store in STORES:
        for file in sorted(store.glob("[!.]*/*.parquet")):
            rows = pl.read_parquet(file)
            place = "module" if "module" in rows.columns else "layer"
            seen = rows.select("metric", pl.col(place).is_null().alias("whole")).unique()
            for name, whole in seen.iter_rows():
                yield name, None if whole else place, place


def test_every_name_of_the_published_runs_is_in_the_table_with_its_axis() -> None:
    found = set(stored_names())
    assert {base_of(name) for name, _, place in found if place == "layer"} >= {"rho", "drift", "test_acc"}
    for name, at, place in found:
        metric = (TRAINED if place == "layer" else WATCHED)[base_of(name)]
        if place == "layer":
            assert (at is None) == (metric.axis in ("network", "parameter")), name
        else:
            assert (at is None) <= (metric.axis in ("network", "module")), name


def test_values_of_the_published_runs_lie_within_bounds() -> None:
    files = [file for store in STORES for file in sorted(store.glob("*/metrics.parquet"))]
    assert len(files) > 50
    for file in files[::4]:
        rows = pl.read_parquet(file)
        if "module" in rows.columns:
            continue
        known = rows.filter(pl.col("defined"), ~pl.col("metric").str.ends_with("_std"))
        for (name,), part in known.group_by("metric"):
            low, high = bounds_of(str(name))
            rounding = 1e-9
            assert (part["value"] >= low - rounding).all(), name
            assert (part["value"] <= high + rounding).all(), name


def test_the_probes_are_those_of_the_table() -> None:
    assert set(PROBES) == {metric.probe for metric in TRAINED.values() if metric.probe}
    assert all(PROBES[name].__name__ == name for name in PROBES)


def test_names_have_an_index_and_a_control() -> None:
    assert base_of("nudge[0.01]/bp") == "nudge" == family_of("nudge[0.01]/bp")
    assert (base_of("rho/null"), family_of("rho/null")) == ("rho", "rho/null")
    assert index_of("drift[blocks.0.w1.weight]") == "blocks.0.w1.weight"
    assert index_of("rho") is None
    nudge = TRAINED["nudge"]
    assert label_of("nudge[0.01]") == f"{nudge.label}, η = 0.01"
    assert symbol_of("nudge[0.01]") == f"{nudge.symbol}, η = 0.01"
    assert label_of("drift[head.weight]") == f"{TRAINED['drift'].label}, head.weight"
    assert label_of("share_of_zeros") == "share of zeros"
    assert bounds_of("share_of_zeros") == (-math.inf, math.inf)


def test_a_metric_can_be_asked_for_by_its_alias() -> None:
    assert ALIASES == {"stale_gradient": "grad_left", "state_values": "state"}
    assert stored_name("stale_gradient") == "grad_left"
    assert stored_name("state_values[3]") == "state[3]"
    assert stored_name("nudge[0.01]/bp") == "nudge[0.01]/bp"
    assert not {*ALIASES} & {*TRAINED, *WATCHED, *PROBES}
    for alias, name in ALIASES.items():
        assert ("metric", name) in {(text.kind, text.name) for text in explanations(alias)}
    rows = rows_of("one", 0, [Reading(metric="state[3]", layer=1, value=0.5, samples=1)], steps=[0])
    assert RowQuery(metrics=["state_values[3]"]).select(rows).equals(rows)
    assert RowQuery(metrics=["state_values[2]"]).select(rows).is_empty()


def test_charts_offer_what_the_table_says() -> None:
    names = ["growth", "test_acc", "rho", "rho/null", "nudge[0.01]", "nudge[0.1]", "batch_loss", "mine"]
    whole = [name for name in names if name in ("test_acc", "batch_loss")]
    found = {one.key: one for one in offered(whole, [name for name in names if name not in whole])}
    assert list(found) == ["test_acc", "growth", "rho", "nudge[0.01]", "rho/null", "mine"]
    for name in ("test_acc", "growth", "rho"):
        metric = TRAINED[name]
        assert (found[name].label, found[name].log) == (metric.label, metric.log)
        assert found[name].layered == (metric.axis != "network")
    assert (found["growth"].index, found["rho"].index) == ("block", "layer")
    assert found["rho/null"].label == TRAINED["rho"].label
    assert {metric.axis for metric in OF_MODULES} == {"module"}
    assert {metric.axis for metric in OF_PARAMETERS} == {"parameter"}


def test_explanations_say_what_the_table_says() -> None:
    known = [*EXPLANATIONS, *documented("probe", BUILT_IN["probe"])]
    texts = {(text.kind, text.name): text for text in known}
    for metric in (*TRAINED.values(), *WATCHED.values()):
        if metric.name in PROBES and metric is WATCHED.get(metric.name):
            continue  # a probe of the same name is what is explained
        text = texts["probe" if metric.name in PROBES else "metric", metric.name]
        assert (text.short, text.good, text.bad) == (metric.definition, metric.good, metric.bad)
        assert text.measured
        if metric.symbol:
            assert metric.name in {one.name for one in explanations(metric.symbol, known)}


def test_the_table_needs_no_torch() -> None:
    code = "import sys, sonde.metrics; sys.exit('torch' in sys.modules or 'polars' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


LABELS = {metric.label for metric in (*TRAINED.values(), *WATCHED.values())} - {"loss"}
"""The label of the loss is a word that texts need."""


def typed(tree: ast.Module) -> Iterator[str]:
    """Labels that a file spells out: alone, or inside of a text that is no docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (label for label in LABELS if node.value == label)


@pytest.mark.parametrize("folder", ["src/sonde", "docs/hooks"])
def test_no_label_is_typed_outside_of_the_table(folder: str) -> None:
    files = [file for file in sorted((ROOT / folder).rglob("*.py")) if SOURCE / "metrics" not in file.parents]
    assert files
    found = {file.name: labels for file in files if (labels := set(typed(ast.parse(file.read_text()))))}
    assert not found


def test_places_that_state_metadata_are_counted() -> None:
    """`make house` counts them from the syntax trees; none is left beside the table."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import house
    finally:
        sys.path.pop(0)
    assert house.stating({*TRAINED, *WATCHED}) == []
    planted = ast.parse('LABELS = {"hidden_norm": "size of h", "rho": "correlation"}')
    assert any(house._states(node, {*TRAINED}) for node in ast.walk(planted))


def test_a_gradient_vanishes_at_one_threshold_for_figures_and_diagnoses() -> None:
    for factor, vanishes in ((0.9, True), (1.1, False)):
        ratio = factor * GRADIENT_VANISHED
        assert (gradient_status(ratio) == "gradient vanishes") == vanishes
        assert (DIAGNOSES["vanishing_gradient"].find(deep_run(ratio)) is not None) == vanishes


def deep_run(ratio: float) -> RunEvidence:
    """A run of five layers whose loss rose, and whose gradient falls to a share of it on its way back."""
    norms = [ratio, *[1.0] * 4]
    gradients = [
        {"step": 0, "module": str(place), "metric": "grad_rms", "value": norm, "defined": True}
        for place, norm in enumerate(norms)
    ]
    losses = [{"step": step, "metric": "loss", "value": 1.0 + step, "defined": True} for step in range(200)]
    modules = [{"name": str(place), "calls": 1, "kind": "linear", "shape": [4, 1]} for place in range(len(norms))]
    rows = pl.DataFrame(gradients + losses, schema=ROWS)
    return RunEvidence(rows=rows, facts={"modules": modules}, steps=200)
