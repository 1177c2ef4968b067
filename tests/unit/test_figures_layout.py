"""Every word of a figure lies inside it and none lies on another."""

from itertools import combinations

import polars as pl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from residual_evidence import residual_evidence, undefined_where

from sonde.figures import FIGURES, Evidence
from sonde.figures.save import settle_layout
from sonde.figures.style import house_style

REALISTIC = residual_evidence(seeds=(42, 43, 44))
CROWDED = {
    "gaps": ("2_gradient_flow", undefined_where(REALISTIC, pl.col("layer").is_in([1, 3]))),
    "one seed": ("6_learning_comparison", residual_evidence()),
    "shallow": ("3_highway_concept", residual_evidence(depth=3)),
    "deep": ("3_highway_concept", residual_evidence(depth=50)),
}


def boxes(figure: Figure) -> dict[str, Bbox]:
    """Where each visible text is drawn, in pixels."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()
    unseen: set[Text] = set()
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval()) if ax.axison else (1, 0)
            unseen |= set() if ax.axison else {axis.label, axis.offsetText}
            for tick in axis.get_major_ticks():
                unseen |= {tick.label2} if low <= tick.get_loc() <= high else {tick.label1, tick.label2}
    return {
        f"{place}: {text.get_text()}": text.get_window_extent(renderer)
        for place, text in enumerate(figure.findobj(Text))
        if text not in unseen and text.get_visible() and text.get_text().strip()
    }


def check(name: str, evidence: Evidence) -> None:
    spec = FIGURES[name]
    figure, _ = spec.draw(evidence.of(variant=spec.variant or ""))
    with house_style():
        settle_layout(figure)
        check_texts(figure)


def check_texts(figure: Figure) -> None:
    found = boxes(figure)
    assert len(found) > 5
    page = Bbox.from_bounds(-1, -1, *(figure.bbox.size + 2))
    for text, box in found.items():
        assert page.containsx(box.x0), text
        assert page.containsx(box.x1), text
        assert page.containsy(box.y0), text
        assert page.containsy(box.y1), text
    for (one, first), (other, second) in combinations(found.items(), 2):
        shared = Bbox.intersection(first, second)
        assert shared is None or min(shared.width, shared.height) < 1.5, f"{one} / {other}"


@pytest.mark.parametrize("name", FIGURES)
def test_words_neither_leave_the_figure_nor_overlap(name: str) -> None:
    check(name, REALISTIC)


@pytest.mark.parametrize("case", CROWDED)
def test_words_keep_apart_where_there_is_less_room(case: str) -> None:
    check(*CROWDED[case])


def test_the_check_sees_words_that_overlap() -> None:
    figure = Figure()
    ax = figure.add_subplot()
    ax.text(0.5, 0.5, "one word")
    ax.text(0.52, 0.5, "another")
    with pytest.raises(AssertionError, match=r"one word / .*another"):
        check_texts(figure)
