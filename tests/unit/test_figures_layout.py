"""Every word of a figure lies inside it and none lies on another."""

import polars as pl
import pytest
from figure_texts import check_texts
from matplotlib.figure import Figure

from evidence import (
    RESIDUAL,
    RULES,
    crowded_rules,
    crowded_snapshots,
    residual_evidence,
    rules_evidence,
    snapshot_evidence,
    undefined_where,
    with_parity,
)
from sonde.rules import RULES as EVERY_RULE
from sonde.show.figures import Evidence, FigureSpec, figures_of
from sonde.show.figures.render import fix_layout
from sonde.show.figures.style import DOUBLE, house_style, legend_row, new_figure

SNAPSHOTS, CIFAR, AUDIT = (
    [name for name, spec in figures_of(study).items() if not spec.beside] for study in ("snapshots", "cifar10", "audit")
)
REALISTIC = residual_evidence(seeds=(42, 43, 44))
CROWDED = {
    "gaps": ("gradient_flow", undefined_where(REALISTIC, pl.col("layer").is_in([1, 3]))),
    "one seed": ("learning_comparison", residual_evidence()),
    "shallow": ("gradient_highway", residual_evidence(depth=3)),
    "deep": ("gradient_highway", residual_evidence(depth=50)),
}


STUDIES = {
    "snapshots, three seeds": (snapshot_evidence(), SNAPSHOTS),
    "snapshots, one seed": (snapshot_evidence(seeds=(42,), epochs=4), SNAPSHOTS[:2]),
    "snapshots, one epoch": (snapshot_evidence(seeds=(42, 123), epochs=1), SNAPSHOTS[1:2]),
    "snapshots, crowded": (crowded_snapshots(), SNAPSHOTS),
    "cifar10, three seeds": (rules_evidence(), CIFAR),
    "audit, one seed": (rules_evidence(seeds=(42,), epochs=4, rules=tuple(RULES), depth=4), AUDIT[:2]),
    "audit, crowded": (crowded_rules(), AUDIT),
    "audit, parity": (with_parity(crowded_rules()), ["parity_summary", "parity_accuracy"]),
}


def check(spec: FigureSpec, evidence: Evidence) -> None:
    figure, _ = spec.draw(evidence)
    with house_style():
        fix_layout(figure)
        check_texts(figure)


@pytest.mark.parametrize("name", RESIDUAL)
def test_words_neither_leave_the_figure_nor_overlap(name: str) -> None:
    check(RESIDUAL[name], REALISTIC)


@pytest.mark.parametrize("case", CROWDED)
def test_words_keep_apart_where_there_is_less_room(case: str) -> None:
    name, evidence = CROWDED[case]
    check(RESIDUAL[name], evidence)


@pytest.mark.parametrize(("case", "name"), [(case, name) for case in STUDIES for name in STUDIES[case][1]])
def test_words_of_the_other_studies_keep_apart_too(case: str, name: str) -> None:
    check(figures_of(case.split(",")[0])[name], STUDIES[case][0])


def test_the_check_sees_words_that_overlap() -> None:
    figure = Figure()
    ax = figure.add_subplot()
    ax.text(0.5, 0.5, "one word")
    ax.text(0.52, 0.5, "another")
    with pytest.raises(AssertionError, match=r"one word / .*another"):
        check_texts(figure)


@pytest.mark.parametrize("share", [1.0, 0.45])
def test_a_legend_of_every_rule_stays_within_its_share_of_the_figure(share: float) -> None:
    with house_style():
        figure = new_figure(DOUBLE, 3.9, "rules")
        panel, below = figure.subplots(2)
        for rule in EVERY_RULE.values():
            panel.plot([0, 1], [0, 1], label=rule().label)
        legend_row(below, [panel], share)
        fix_layout(figure)
        legend = below.get_legend()
        assert legend is not None
        assert legend.get_window_extent().width <= share * figure.bbox.width
