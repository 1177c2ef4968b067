"""Every word of a figure lies inside it and none lies on another: checked on the drawn boxes."""

from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox


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
