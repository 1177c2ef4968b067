"""Good beside bad, and a rule among the others: what is drawn is what the rows say."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from figure_texts import check_texts

from evidence import RULES, rules_evidence
from sonde.show.figures import Evidence, NoData
from sonde.show.figures.render import fix_layout
from sonde.show.figures.style import house_style

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "hooks"))

from contrast import Case, Measure, draw_contrast, draw_portrait

NAN = float("nan")
VALUES = {"healthy": [1.0, 2.0, 4.0], "faulty": [1.0, NAN, 1000.0]}


@dataclass(frozen=True)
class Two:
    """Two runs of three steps each."""

    labels: dict[str, str] = field(default_factory=lambda: {state: state for state in VALUES})
    recipe: str = "three steps"
    source: str = "here"
    by: str = "state"
    runs: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame({"run": ["a", "b"], "state": list(VALUES), "seed": [0, 0]})
    )


def rows() -> pl.DataFrame:
    return pl.concat(
        pl.DataFrame(
            {
                "state": [state] * 3,
                "seed": [0] * 3,
                "metric": ["loss"] * 3,
                "step": [0, 1, 2],
                "value": values,
                "defined": [not np.isnan(value) for value in values],
            }
        )
        for state, values in VALUES.items()
    )


CASES = [Case(title=f"A {state} one", key=state) for state in VALUES]


def drawn(log: bool, cases: list[Case] = CASES, table: pl.DataFrame | None = None):  # type: ignore[no-untyped-def]
    measure = Measure(name="loss", along="step", log=log, level=50.0, level_name="threshold")
    return draw_contrast(Two(), rows() if table is None else table, cases, measure, title="Loss", shown="The loss.")


@pytest.mark.parametrize("log", [False, True])
def test_each_panel_draws_its_own_run_on_one_scale(log: bool) -> None:
    figure, caption = drawn(log)
    left, right = figure.axes[:2]
    for ax, (state, values) in zip((left, right), VALUES.items(), strict=True):
        (line,) = [one for one in ax.lines if one.get_label() == state]
        np.testing.assert_array_equal(line.get_ydata(), values)
    assert left.get_ylim() == right.get_ylim()
    assert left.get_xlim() == right.get_xlim()
    assert left.get_ylim()[1] > 1000
    assert "n = 1 seed (0)" in caption
    assert "A healthy one, 1 to 4; A faulty one, 1 to 1000" in caption
    assert "Faulty: 1 of 3 steps undefined, left as gaps" in caption


def test_what_is_undefined_is_marked_and_not_joined() -> None:
    figure, _ = drawn(log=False)
    (crosses,) = [one for one in figure.axes[1].lines if one.get_label() == "undefined"]
    assert list(crosses.get_xdata()) == [1]
    assert not [one for one in figure.axes[0].lines if one.get_label() == "undefined"]


def test_a_run_without_a_finite_value_says_so() -> None:
    table = rows().with_columns(
        value=pl.when(pl.col("state") == "faulty").then(NAN).otherwise("value"),
        defined=pl.col("defined") & (pl.col("state") == "healthy"),
    )
    figure, caption = drawn(log=True, table=table)
    assert [text.get_text() for text in figure.axes[1].texts] == ["no finite value"]
    assert "A faulty one, no finite value" in caption


def test_lines_to_compare_with_are_grey_and_of_the_same_case() -> None:
    beside = {"at init": rows().with_columns(value=pl.col("value") / 2)}
    figure, _ = drawn(False, [Case(title=case.title, key=case.key, beside=beside) for case in CASES])
    (line,) = [one for one in figure.axes[0].lines if one.get_label() == "at init"]
    np.testing.assert_array_equal(line.get_ydata(), [0.5, 1.0, 2.0])


@pytest.mark.parametrize("rule", ["dfa", "bp", "frozen"])
def test_a_portrait_has_the_rule_its_chance_and_the_two_it_lies_between(rule: str) -> None:
    evidence = rules_evidence(rules=tuple(RULES), depth=4)
    figure, caption = draw_portrait(evidence, rule)
    cosines, accuracies = figure.axes[:2]
    known = evidence.metric("test_acc").filter(rule=rule).group_by("epoch").agg(pl.col("value").mean())
    label = evidence.runs.filter(rule=rule)["rule_label"][0]
    (line,) = [one for one in accuracies.lines if one.get_label() == label]
    np.testing.assert_allclose(line.get_ydata(), known.sort("epoch")["value"])
    assert {"BP", label} <= {one.get_label() for one in accuracies.lines}
    if rule == "dfa":
        assert "chance" in {one.get_label() for one in cosines.lines}
    assert f"{label} " in caption.partition("Test accuracy:")[2]


def test_a_portrait_cuts_no_seed_off() -> None:
    evidence = rules_evidence(rules=tuple(RULES), depth=4)
    low = (pl.col("run") == "dfa-42") & (pl.col("metric") == "credit_cosine") & (pl.col("layer") == 2)
    rows = evidence.rows.with_columns(value=pl.when(low).then(-0.9).otherwise("value"))
    figure, _ = draw_portrait(Evidence(rows, evidence.runs, evidence.source), "dfa")
    assert figure.axes[0].get_ylim()[0] < -0.9


def test_a_portrait_of_a_rule_without_runs_is_refused() -> None:
    with pytest.raises(NoData, match="no run under nobody"):
        draw_portrait(rules_evidence(rules=tuple(RULES), depth=4), "nobody")


def test_words_neither_leave_the_figure_nor_overlap() -> None:
    for figure, _ in (drawn(log=True), draw_portrait(rules_evidence(rules=tuple(RULES), depth=4), "dfa")):
        with house_style():
            fix_layout(figure)
            check_texts(figure)
