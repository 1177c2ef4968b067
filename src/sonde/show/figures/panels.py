"""Quantities of networks against epochs, one line per rule, and what training ends with."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import polars as pl
from matplotlib.axes import Axes

from sonde.analysis.evidence import NoData
from sonde.core.formatting import accuracy, number, sentence_case
from sonde.core.seed_statistics import over_seeds
from sonde.metrics import TRAINED, as_math
from sonde.show.figures.groups import Cohort, Lines, join_cohorts, line_key, with_lines
from sonde.show.figures.marks import draw_panel, epoch_axis
from sonde.show.figures.series import Curves, Floats, Series, curves, line_notes, merge_notes, missing_seeds, with_n

_HELD = 1.5
"""A quantity that changes by less than this factor, up or down, holds."""

BATCH_MEAN_LOSS = "batch-mean loss"
"""Every panel draws the gradient of this loss, as the paper layout stores it."""

_POOLING = {"cls": "of the CLS token", "last": "of the last token", "mean": "of the mean over tokens or positions"}


@dataclass(frozen=True)
class Final:
    """A rule's accuracy at the last epoch; NaN if there is none."""

    rule: str
    label: str
    mean: float
    std: float  # sample standard deviation, NaN for n < 2
    n: int
    seeds: list[float]

    @property
    def words(self) -> str:
        """In per cent: "59.2 ± 0.4 %"."""
        return accuracy(self.mean, self.std)


@dataclass(frozen=True)
class Finals:
    """Every rule's accuracy at one epoch, the last that any run reached."""

    epoch: int
    rules: list[Final]
    rows: pl.DataFrame
    notes: list[str]

    @property
    def summary(self) -> pl.DataFrame:
        """Rule and n."""
        return pl.DataFrame({"rule": [final.rule for final in self.rules], "n": [final.n for final in self.rules]})

    @property
    def words(self) -> str:
        """All rules in a line: "BP 59.2 ± 0.4 %, DFA 31.0 ± 0.2 %"."""
        return ", ".join(f"{final.label} {final.words}" for final in self.rules)

    def of(self, rule: str) -> Final | None:
        """The value of a rule; None if no seed has one."""
        return next((final for final in self.rules if final.rule == rule and final.n), None)


def finals_of(cohort: Cohort, metric: str = "test_acc") -> Finals:
    """Accuracy at the last epoch; a run that does not reach it has none, and a note says so."""
    rows = cohort.evidence.rows_with(metric)
    if not rows["defined"].any():
        raise NoData(f"no {'defined ' * bool(rows.height)}{metric} rows in {cohort.source}")
    epoch = max(rows["epoch"].to_list())
    last = cohort.evidence.described(rows.filter(pl.col("epoch") == epoch))
    measured = set(cohort.runs.filter(pl.col("run").is_in(rows["run"].unique().to_list()))["rule"])
    summary = over_seeds(last, "rule")
    rules, notes = [], []
    for rule, label in cohort.labels.items():
        values = last.filter(pl.col("rule") == rule, pl.col("defined"))["value"].to_list()
        of_rule = summary.filter(pl.col("rule") == rule).select("mean", "std", "n").rows()
        mean, std, n = of_rule[0] if of_rule else (None, None, 0)
        rules.append(Final(rule, label, _nan(mean), _nan(std), n, values))
        if rule not in measured:
            notes.append(f"{label}: no {metric} rows in {cohort.source}.")
    return Finals(epoch, rules, last, notes + missing_seeds(cohort, last, f" at epoch {epoch}"))


def _nan(value: float | None) -> float:
    return math.nan if value is None else value


@dataclass(frozen=True)
class Change:
    """The last value of a rule relative to its first, as a mean over the runs that have both."""

    label: str
    ratio: float  # NaN if it has no value
    first: int
    last: int
    n: int
    runs: int

    @property
    def when(self) -> str:
        """For example: "init to epoch 100"."""
        return f"{'init' if self.first == 0 else f'epoch {self.first}'} to epoch {self.last}"

    @property
    def words(self) -> str:
        """For example: "BP grows ×12"."""
        if math.isnan(self.ratio):
            return f"{self.label} undefined"
        verb = "grows" if self.ratio >= _HELD else "falls to" if self.ratio <= 1 / _HELD else "holds"
        fewer = "" if self.n == self.runs else f" (n = {self.n})"
        return f"{self.label} {verb} ×{number(self.ratio)}{fewer}"


def changes_of(cohort: Cohort, rows: pl.DataFrame) -> list[Change]:
    """Per rule, between the first and the last epoch at which any of its runs has a defined value."""
    moved = []
    for rule, label in cohort.labels.items():
        of_rule = rows.filter(pl.col("rule") == rule)
        defined = of_rule.filter("defined")
        if defined.is_empty():
            continue
        epochs = defined["epoch"].to_list()
        first, last = min(epochs), max(epochs)
        ends = defined.group_by("run", maintain_order=True).agg(
            start=pl.col("value").filter(pl.col("epoch") == first).first(),
            end=pl.col("value").filter(pl.col("epoch") == last).first(),
        )
        ratios = ends.select(rule=pl.lit(rule), value=pl.col("end") / pl.col("start"))
        both = (pl.col("value").is_finite() & (first < last)).fill_null(False)
        mean, n = over_seeds(ratios.with_columns(defined=both), "rule").select("mean", "n").row(0)
        moved.append(Change(label, _nan(mean), first, last, n, of_rule["run"].n_unique()))
    return moved


def change_words(moved: list[Change]) -> str:
    """All changes in a line: "init to epoch 100: BP grows ×12, DFA grows ×1.6e7"."""
    sharing: dict[str, list[str]] = {}
    for change in moved:
        sharing.setdefault(change.when, []).append(change.words)
    return "; ".join(f"{when}: {', '.join(words)}" for when, words in sharing.items())


@dataclass(frozen=True)
class Quantity:
    """What a column of panels shows."""

    metric: str
    at: str = ""  # the layer, as its symbol names it
    layer: Callable[[Cohort], int] | None = None  # None: of the whole network

    @property
    def name(self) -> str:
        """In sentences."""
        known = TRAINED[self.metric]
        return known.at(self.at) if self.at else known.label

    @property
    def symbol(self) -> str:
        """On the figure."""
        return as_math(self.name) if self.at else self.name

    @property
    def log(self) -> bool:
        """Whether it is drawn on a log axis."""
        return TRAINED[self.metric].log


STREAM_TOP = Quantity("hidden_norm", "L", lambda cohort: cohort.depth)
GRADIENT_TOP = Quantity("grad_norm", "L", lambda cohort: cohort.depth)
GRADIENT_2 = Quantity("grad_norm", "2", lambda cohort: 2)
ACCURACY = Quantity("test_acc")


@dataclass(frozen=True)
class Panel:
    """One quantity of one network."""

    cohort: Cohort
    quantity: Quantity
    curves: Curves

    @property
    def rows(self) -> pl.DataFrame:
        """The rows of the quantity."""
        return self.curves.rows

    @property
    def lines(self) -> list[Series]:
        """A line for every rule with rows."""
        return self.curves.lines

    @property
    def changes(self) -> str:
        """By what factor each rule's quantity changed over training."""
        return change_words(changes_of(self.cohort, self.rows))

    @property
    def sentence(self) -> str:
        """What the rows say: "ResMLP, ‖h_L‖, init to epoch 100: BP grows ×12, DFA grows ×1.6e7"."""
        what = f"{self.cohort.network}, {self.quantity.name}"
        if not self.rows["defined"].any():
            return f"{what}: no values"
        if self.quantity is ACCURACY:
            finals = finals_of(self.cohort)
            return f"{what} at epoch {finals.epoch}: {finals.words}"
        return f"{what}, {self.changes}"

    def extents(self) -> list[Floats]:
        """Every value that the y axis has to contain."""
        return self.curves.extents(log=self.quantity.log)

    def notes(self, *, alone: bool) -> list[str]:
        """What is not drawn, and why; names the network unless it is alone in the figure."""
        cohort, metric = self.cohort, self.quantity.metric
        if self.rows.is_empty():
            return [f"{cohort.network}: no {metric} rows in {cohort.source}."]
        names = {r: label if alone else line_key(cohort, r) for r, label in cohort.labels.items()}
        named = [replace(line, label=names[line.key]) for line in self.lines]
        absent = [label for rule, label in names.items() if rule not in set(self.rows["rule"])]
        return line_notes(named, log=self.quantity.log) + [
            f"{label}: no {metric} rows in {cohort.source}." for label in absent
        ]

    def draw(self, ax: Axes, names: dict[str, str], along: Sequence[Series] | None = None) -> None:
        """Draw the lines; the caller sets up the y axis.  The x axis spans the epochs of `along`, or of the lines."""
        log, empty = self.quantity.log, f"no {self.quantity.metric} rows"
        draw_panel(ax, self.lines, log=log, names=names, marks=9, empty=empty)
        if self.lines:
            epoch_axis(ax, self.lines if along is None else along)


def panels_of(cohort: Cohort, quantities: Sequence[Quantity]) -> list[Panel]:
    """A panel for each quantity; one without rows has no lines."""
    found = []
    for quantity in quantities:
        rows = cohort.evidence.metric(quantity.metric)
        if quantity.metric == "grad_norm":  # stored per sample; some files know the batch-mean loss only
            rows = rows.with_columns(pl.col("value") / pl.col("probe_size").fill_null(1))
        if quantity.layer is not None:
            rows = rows.filter(pl.col("layer") == quantity.layer(cohort))
        found.append(Panel(cohort, quantity, curves(cohort, rows, "epoch")))
    return found


@dataclass(frozen=True)
class Grid:
    """A row of panels for each network, a column for each quantity."""

    rows: list[list[Panel]]
    group: Lines
    notes: list[str]  # what is absent, and what the panels do not show

    @property
    def panels(self) -> list[Panel]:
        """All panels, row by row."""
        return [panel for row in self.rows for panel in row]

    @property
    def lines(self) -> list[Series]:
        """The lines of all panels."""
        return [line for panel in self.panels for line in panel.lines]

    @property
    def summary(self) -> pl.DataFrame:
        """n of every point of every line."""
        parts = [(panel.cohort, panel.curves.summary) for panel in self.panels if panel.lines]
        return pl.concat(with_lines(cohort, summary.select("rule", "n")) for cohort, summary in parts)

    @property
    def names(self) -> dict[str, str]:
        """The labels in the legend, by rule."""
        return with_n(self.lines)

    @property
    def sentences(self) -> str:
        """What the rows of every panel say."""
        return "; ".join(panel.sentence for panel in self.panels)

    def extents(self, column: int) -> list[Floats]:
        """Of a column, so that its rows can have one range and be compared."""
        return [part for row in self.rows for part in row[column].extents()]


def grid_of(
    cohorts: Sequence[Cohort], quantities: Sequence[Quantity], rules: Sequence[str] = (), absent: Sequence[str] = ()
) -> Grid:
    """The panels of every network; NoData if nothing at all can be drawn.

    A note names each of `rules` that a network lacks; `absent` are notes on networks that have no runs.
    """
    rows = [panels_of(cohort, quantities) for cohort in cohorts]
    panels = [panel for row in rows for panel in row]
    _check_any(panels)
    group = join_cohorts(cohorts)
    missing = [f"{c.network}: no {rule} run." for c in cohorts for rule in rules if rule not in c.labels]
    seeds = [with_lines(panel.cohort, panel.rows.select("rule", "seed", "defined")) for panel in panels]
    tagged = [(note, panel.quantity.name) for panel in panels for note in panel.notes(alone=len(cohorts) == 1)]
    gaps = merge_notes(tagged, (quantity.name for quantity in quantities))
    return Grid(rows, group, [*absent, *missing, *missing_seeds(group, pl.concat(seeds)), *gaps])


def _check_any(panels: Sequence[Panel]) -> None:
    if any(panel.rows["defined"].any() for panel in panels):
        return
    metrics = " or ".join(dict.fromkeys(panel.quantity.metric for panel in panels))
    source = panels[0].cohort.source
    reasons = {reason for panel in panels for reason in panel.rows["reason"].drop_nulls()}
    if reasons:
        raise NoData(f"every {metrics} value in {source} is undefined: {', '.join(sorted(reasons))}")
    raise NoData(f"no {metrics} rows in {source}")


def cohorts_of(choices: Sequence[Callable[[], Cohort]]) -> tuple[list[Cohort], list[str]]:
    """The cohorts that have runs, and a note for each that has none; NoData if there is none at all."""
    cohorts, notes = [], []
    for choose in choices:
        try:
            cohorts.append(choose())
        except NoData as missing:
            notes.append(f"{sentence_case(str(missing))}.")
    if not cohorts:
        raise NoData("; ".join(note[0].lower() + note[1:-1] for note in notes))
    return cohorts, notes


def probe_text(panels: Sequence[Panel]) -> str:
    """The samples that norms are medians over, the loss whose gradient is drawn, and what epoch 0 is."""
    rows = pl.concat([p.rows.select("samples") for p in panels if p.quantity.layer is not None])
    sizes = sorted({size for size in rows["samples"].drop_nulls() if size > 0})
    many = "–".join(f"{size:,}" for size in dict.fromkeys([*sizes[:1], *sizes[-1:]]))
    loss = (
        f"the gradient is that of the {BATCH_MEAN_LOSS}, 1/N of that of each sample's own loss, with N = {many}"
        if many
        else f"the gradient is that of the {BATCH_MEAN_LOSS}, over a number of samples that is not recorded"
    )
    pooled = {panel.cohort.network: panel.cohort.runs["reader"][0] for panel in panels}
    read = "".join(f" ({network}: {_POOLING[how]})" for network, how in sorted(pooled.items()) if how in _POOLING)
    start = "; epoch 0 is the initialisation" * any((panel.rows["epoch"] == 0).any() for panel in panels)
    return f"median over {many or 'the'} probe samples{read}; {loss}{start}"
