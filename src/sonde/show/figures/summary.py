"""Figure 18: test accuracy at the end of training, all rules."""

import polars as pl
from matplotlib.figure import Figure

from sonde.analysis.evidence import Evidence
from sonde.core.formatting import accuracy, signed
from sonde.core.seed_statistics import paired, summarise
from sonde.metrics import TRAINED
from sonde.show.figures.caption import caption, n_text
from sonde.show.figures.cohort import cohort_of
from sonde.show.figures.final_values import Final, Finals, draw_finals, finals_of
from sonde.show.figures.style import COLUMN, fine_print, new_figure


def draw(evidence: Evidence) -> tuple[Figure, str]:
    cohort = cohort_of(evidence)
    finals = finals_of(cohort)
    frozen = finals.of("frozen")
    notes = finals.notes
    drawn = list(notes)
    if any(final.n >= 2 for final in finals.rules):
        drawn.insert(0, "Bar: mean; whisker: sample s.d.; dots: seeds.")
    if frozen is not None:
        drawn.insert(0, f"Dashed line: {frozen.label} blocks, {accuracy(frozen.mean)}.")

    title = f"Test accuracy, {cohort.setting}, {_when(finals.epoch, cohort.epochs)}, {n_text(cohort, finals.summary)}"
    pitch = 0.27 if len({final.n for final in finals.rules}) == 1 else 0.36  # inches a bar
    figure = new_figure(COLUMN, 1.05 + pitch * len(finals.rules), title)
    ax = figure.add_subplot()
    draw_finals(ax, finals.rules, room=0.6, reference=frozen)
    ax.set_xlabel(TRAINED["test_acc"].label)
    fine_print(figure, drawn)
    shown = f"Test accuracy at epoch {finals.epoch}, all rules."
    look = f"Look at the values: {finals.words}.{_against(finals, frozen)}"
    return figure, caption(cohort, finals.summary, shown, look, notes, marks="bars")


def _when(epoch: int, epochs: int) -> str:
    return f"{epochs} epochs" if epoch == epochs else f"epoch {epoch} of {epochs}"


def _against(finals: Finals, frozen: Final | None) -> str:
    """How many points each rule lies above or below untrained blocks: differences by seed, as the audit takes them."""
    others = [final for final in finals.rules if final.n and final.rule != "frozen"]
    if frozen is None or not others:
        return ""
    by_seed = {
        final.rule: _by_seed(finals.rows.filter(pl.col("rule") == final.rule, pl.col("defined")))
        for final in (frozen, *others)
    }
    gaps, counts = [], []
    for final in others:
        differences = paired(by_seed[final.rule], by_seed["frozen"]).differences
        points = summarise(100 * difference for difference in differences.values())
        counts.append(points.n)
        gaps.append(f"{final.label} {signed(points.mean) if points.n else 'undefined, no seed in common'}")
    alike = len(set(counts)) == 1
    said = gaps if alike else [f"{gap} (n = {n})" for gap, n in zip(gaps, counts, strict=True)]
    n = f", n = {counts[0]}" if alike else ""
    what = f"Points of test accuracy over {frozen.label} blocks, mean of the differences by seed"
    return f" {what}{n}: {', '.join(said)}."


def _by_seed(rows: pl.DataFrame) -> dict[int, float]:
    """Of the seeds that are recorded."""
    seeded = rows.drop_nulls("seed")
    return dict(zip(seeded["seed"].to_list(), seeded["value"].to_list(), strict=True))
