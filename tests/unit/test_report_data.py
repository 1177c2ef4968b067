"""The numbers the charts read are the stored ones: rounded as said, undefined with the reason, each with its n."""

import json
import math
from pathlib import Path

import polars as pl
import pytest
from page_runs import labelled_run

import sonde
from sonde.metrics.rows import SCHEMA
from sonde.show.report import ReportContents, as_script, report_contents
from sonde.show.report.charts import CHART_DIGITS, NO_CHARTS, _Tables, chart_data, offered, packed_series, styled_names
from sonde.studies import STUDIES
from stores import NASTY, write_run, write_study

Line = tuple[int, int | None, float, str | None, int]


def table(*lines: Line, run: str = "a", metric: str = "credit_cosine") -> pl.DataFrame:
    rows = [(run, epoch, epoch, layer, metric, value, why is None, why, n) for epoch, layer, value, why, n in lines]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> ReportContents:
    root = tmp_path_factory.mktemp("report") / "runs"
    write_study(root, "audit", seeds=(42,))
    unfinished = STUDIES["snapshots"].configs("quick", [42])[3]
    write_run(root, unfinished, state="unfinished", epoch=7)
    return report_contents(sonde.load(root), source=str(root), title="t")


def test_no_runs_have_the_keys_of_charts_and_nothing_else(gathered: ReportContents) -> None:
    assert NO_CHARTS.keys() == chart_data(gathered.rows, gathered.runs).keys()
    assert not any(value for key, value in NO_CHARTS.items() if key != "digits")


def test_values_run_over_epochs_and_within_them_over_layers() -> None:
    tables = _Tables()
    rows = table((0, 0, 0.1, None, 5), (0, 1, 0.2, None, 5), (4, 0, 0.3, None, 5), (4, 1, 0.4, None, 5))
    (packed,) = packed_series(rows, ["a"], ["credit_cosine"], tables)
    assert packed["v"] == [0.1, 0.2, 0.3, 0.4]
    assert (tables.grids[packed["e"]], tables.grids[packed["l"]]) == ([0, 4], [0, 1])
    assert packed["n"] == 5


def test_an_undefined_value_is_null_with_its_reason_and_a_missing_one_has_none() -> None:
    tables = _Tables()
    rows = table((0, 0, math.nan, "zero norm", 5), (0, 1, 0.2, None, 3), (1, 1, 0.4, None, 5))
    (packed,) = packed_series(rows, ["a"], ["credit_cosine"], tables)
    assert packed["v"] == [None, 0.2, None, 0.4]
    assert [(start, count, tables.reasons[why]) for start, count, why in packed["w"]] == [(0, 1, "zero norm")]
    assert packed["n"] == [5, 3, None, 5]  # each value says its own n where they differ


def test_a_number_that_is_not_finite_is_never_embedded() -> None:
    rows = table((0, None, math.inf, None, 1), metric="loss")
    tables = _Tables()
    (packed,) = packed_series(rows, ["a"], ["loss"], tables)
    assert packed["v"] == [None]
    assert tables.reasons == ["no reason was recorded"]


def test_every_embedded_value_is_the_stored_one_to_six_digits(gathered: ReportContents) -> None:
    data = chart_data(gathered.rows, gathered.runs)
    checked = 0
    for packed in data["series"]:
        run, metric = data["runs"][packed["r"]]["id"], data["metrics"][packed["m"]]["key"]
        stored = gathered.rows.filter(run=run, metric=metric).sort("epoch", "layer")
        assert len(packed["v"]) == stored.height
        for value, row in zip(packed["v"], stored.iter_rows(named=True), strict=True):
            if value is None:
                assert not row["defined"]
            else:
                assert value == pytest.approx(row["value"], rel=10.0 ** (1 - CHART_DIGITS))
            checked += 1
    assert checked > 5_000


def test_runs_of_different_recipes_are_never_in_one_family(gathered: ReportContents) -> None:
    data = chart_data(gathered.rows, gathered.runs)
    assert [family["title"] for family in data["families"]] == ["digits, 20 epochs", "teacher, 20 epochs"]
    rules = [rule["label"] for rule in data["families"][0]["rules"]]
    assert rules == ["BP", "FA", "DFA", "State Bridge", "Credit Bridge", "frozen"]


def test_quick_and_full_runs_are_never_in_one_family(tmp_path: Path) -> None:
    for scale in ("quick", "full"):
        write_run(tmp_path, STUDIES["audit"].configs(scale, [42])[0], state="unfinished", epoch=2)
    found = report_contents(sonde.load(tmp_path), source="runs", title="t")
    assert len({run.family for run in found.runs}) == 2


def test_the_data_block_cannot_end_its_script_element() -> None:
    text = as_script({"label": f"</script><!--{NASTY}\u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"label": f"</script><!--{NASTY}\u2028"}


def test_controls_come_with_their_metric_and_families_stay_with_figures() -> None:
    whole = ["batch_loss", "test_acc", "own_score", "drift[blocks.0.w1.weight]"]
    layered = ["rho", "rho/null", "rho/bp", "own[3]", "own_depth", "own_depth/null", "nudge[1]", "state[0]"]
    assert [metric.key for metric in offered(whole, layered)] == [
        *("test_acc", "rho", "rho/null", "rho/bp", "own_depth/null"),
        *("own_score", "own[3]", "own_depth"),
    ]
    found = {metric.key: metric for metric in offered(whole, layered)}
    assert (found["own_depth"].label, found["own_depth"].layered) == ("own depth", True)


def test_only_a_name_that_a_guest_can_have_reaches_the_style_sheet() -> None:
    names = styled_names([labelled_run(model="</style><script>alert(1)</script>", rule="Signs")])
    assert "Signs" in names
    assert not any("<" in name for name in names)
