"""Figure 18: test accuracy at the end of training, all rules."""

from matplotlib.figure import Figure

from sonde.figures.cohort import cohort_of
from sonde.figures.evidence import Evidence
from sonde.figures.final import Final, draw_bars, finals_of
from sonde.figures.style import COLUMN, fine_print, new_figure
from sonde.figures.words import caption, n_text


def draw(evidence: Evidence) -> tuple[Figure, str]:
    cohort = cohort_of(evidence)
    finals = finals_of(cohort)
    frozen = finals.of("frozen")
    notes = finals.notes
    drawn = list(notes)
    if any(final.n >= 2 for final in finals.rules):
        drawn.insert(0, "Bar: mean; whisker: sample s.d.; dots: seeds.")
    if frozen is not None:
        drawn.insert(0, f"Dashed line: {frozen.label} blocks, {100 * frozen.mean:.1f} %.")

    title = f"Test accuracy, {cohort.setting}, {_when(finals.epoch, cohort.epochs)}, {n_text(cohort, finals.summary)}"
    pitch = 0.27 if len({final.n for final in finals.rules}) == 1 else 0.36  # inches a bar
    figure = new_figure(COLUMN, 1.05 + pitch * len(finals.rules), title)
    ax = figure.add_subplot()
    draw_bars(ax, finals.rules, room=0.6, reference=frozen)
    ax.set_xlabel("test accuracy")
    fine_print(figure, drawn)
    shown = f"Test accuracy at epoch {finals.epoch}, all rules."
    look = f"Look at the values: {finals.words}.{_against(finals.rules, frozen)}"
    return figure, caption(cohort, finals.summary, shown, look, notes)


def _when(epoch: int, epochs: int) -> str:
    return f"{epochs} epochs" if epoch == epochs else f"epoch {epoch} of {epochs}"


def _against(rules: list[Final], frozen: Final | None) -> str:
    """How many points each rule lies above or below untrained blocks."""
    others = [final for final in rules if final.n and final.rule not in ("frozen",)]
    if frozen is None or not others:
        return ""
    gaps = ", ".join(f"{final.label} {100 * (final.mean - frozen.mean):+.1f}" for final in others)
    return f" Points of test accuracy against {frozen.label} blocks: {gaps.replace('-', '−')}."
