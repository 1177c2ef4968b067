"""One rule among the others: where its credit points, layer by layer, and what it reaches."""

import numpy as np
from matplotlib.figure import Figure

from sonde.analysis.evidence import Evidence, NoData
from sonde.core.formatting import accuracy
from sonde.metrics import TRAINED
from sonde.show.figures.caption import caption, n_text
from sonde.show.figures.cohort import Cohort, cohort_of
from sonde.show.figures.contrast import GREY, HEIGHT, WIDTH, only
from sonde.show.figures.diagnostics import by_layer
from sonde.show.figures.marks import draw_panel, say_empty
from sonde.show.figures.scales import PERCENT, epoch_axis, layer_axis, linear_limits
from sonde.show.figures.series import Series, curves, latest, line_notes
from sonde.show.figures.style import FAINT, house_style, legend_row, new_figure, panel_title

FRAME = ("bp", "frozen")
"""The rules between which a rule's accuracy is read."""


def draw_portrait(evidence: Evidence, rule: str) -> tuple[Figure, str]:
    """Cosine with the BP gradient beside chance at the last epoch, and test accuracy over epochs."""
    cohort = cohort_of(evidence)
    if rule not in cohort.labels:
        raise NoData(f"no run under {rule} in {evidence.source}")
    shown = only(cohort, (rule, *FRAME))
    own = only(cohort, (rule,))
    cosines, when = _last(own, "credit_cosine")
    chance, _ = _last(own, "credit_cosine/null")
    learning = curves(shown, shown.evidence.metric("test_acc"), "epoch")
    notes = line_notes(cosines, log=False, unit="layers")
    with house_style():
        title = f"{cohort.labels[rule]}, {cohort.network}, {cohort.task}, {n_text(shown, learning.summary)}"
        figure = new_figure(WIDTH, HEIGHT, title)
        layout = figure.add_gridspec(2, 2, height_ratios=(1, 0.06))
        left, right = (figure.add_subplot(layout[0, column]) for column in range(2))
        panel_title(left, f"{TRAINED['credit_cosine'].label}, epoch {when}", width=46)
        if any(not np.isnan(line.mean).all() for line in cosines):
            left.axhline(0, color=FAINT, linewidth=0.6)
            for line in chance:
                left.plot(line.x, line.mean, color=FAINT, linewidth=1, linestyle=GREY[1], label="chance")
            draw_panel(left, cosines, log=False)
            layer_axis(left, cohort.depth, first=0, zero="0")
            drawn = [*(line.extent(log=False) for line in cosines), *(line.mean for line in chance)]
            left.set_ylim(*linear_limits(*drawn, np.array([0.0, 1.0])))
        else:
            say_empty(left, "undefined at every layer")
        panel_title(right, TRAINED["test_acc"].label)
        draw_panel(right, learning.lines, log=False)
        epoch_axis(right, learning.lines)
        right.yaxis.set_major_formatter(PERCENT)
        right.set_ylim(*linear_limits(*learning.extents(log=False), np.array([0.0])))
        legend_row(figure.add_subplot(layout[1, :]), (right, left))
    text = (
        f"Left, cosine between the rule's credit and the BP gradient at every state, epoch {when}; grey dots: chance, "
        "drawn as the rule, or the blind rule in its place, draws. Right, test accuracy over epochs beside BP "
        "and frozen blocks."
    )
    ends = ", ".join(f"{line.label} {accuracy(line.mean[-1])}" for line in learning.lines)
    said = "; ".join(by_layer(line) for line in cosines)
    return figure, caption(shown, learning.summary, text, f"Cosine: {said}. Test accuracy: {ends}.", notes)


def _last(cohort: Cohort, metric: str) -> tuple[list[Series], int]:
    """The lines at the last epoch, and which that is."""
    rows = cohort.evidence.metric(metric)
    if rows.is_empty():
        return [], cohort.epochs
    chosen, _ = latest(rows, None)
    return curves(cohort, chosen, "layer", range(cohort.depth + 1)).lines, int(chosen["epoch"][0])
