"""The statistics of every figure: mean, standard deviation and n over seeds, along layers, steps or epochs.

An undefined value is a gap in the line, and a note names what a log axis cannot show.

The caption tells what a figure shows, n, seeds, recipe and run ids, all read from the runs it was drawn from.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from sonde.core.formatting import sentence_case
from sonde.core.seed_statistics import over_seeds
from sonde.metrics import UNLIMITED, Bounds, bounds_of

FEW_SEEDS = 5
"""With fewer seeds each is drawn as a line of its own, because a band would pretend to know their spread."""

_NAMED_RUNS = 8  # a caption names the ids of at most so many runs


class Group(Protocol):
    """The runs of a figure and the lines they make."""

    @property
    def runs(self) -> pl.DataFrame:
        """The runs, with the columns `run`, `seed` and the one that `by` names."""

    @property
    def by(self) -> str:
        """The column of the runs that has the keys of the lines."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The label of every line, by key."""

    @property
    def recipe(self) -> str:
        """What the runs have in common."""

    @property
    def source(self) -> str:
        """Where the runs were read."""


def count_range(counts: Iterable[int]) -> str:
    """One number, or the least and the most: "3", "2–3"; zeros count only if there is nothing else."""
    positive = sorted({n for n in counts if n > 0}) or [0]
    return "–".join(map(str, dict.fromkeys([positive[0], positive[-1]])))


def n_text(group: Group, summary: pl.DataFrame) -> str:
    """How many seeds the values are means of: "n = 3 seeds", with the range if it varies."""
    noun = "run" if group.runs["seed"].null_count() else "seed"
    counts = {key: summary.filter(pl.col(group.by) == key)["n"].to_list() for key in group.labels}
    spans = {key: count_range(of_key) for key, of_key in counts.items()}
    if len(set(spans.values())) == 1:
        n = next(iter(spans.values()))
        return f"n = {n} {noun if n == '1' else noun + 's'}"
    if len(spans) > 2:
        n = count_range(n for of_key in counts.values() for n in of_key)
        return f"n = {n} {noun if n == '1' else noun + 's'}"
    return f"n = {' and '.join(f'{n} ({group.labels[key]})' for key, n in spans.items())} {noun}s"


def seeds_text(group: Group) -> str:
    """The seeds of every line, or that they are not recorded; lines with the same seeds are named together."""
    sharing: dict[str, list[str]] = {}
    for key, label in group.labels.items():
        seeds = group.runs.filter(pl.col(group.by) == key)["seed"].to_list()
        text = "seed not recorded" if None in seeds else ", ".join(map(str, dict.fromkeys(seeds)))
        sharing.setdefault(text, []).append(label)
    if len(sharing) == 1:
        return next(iter(sharing))
    if len(group.labels) > 2:
        most = max(sharing, key=lambda text: len(sharing[text]))
        others = [f"{', '.join(labels)}: {text}" for text, labels in sharing.items() if text != most]
        return "; ".join([most, *others])
    return "; ".join(f"{' and '.join(labels)} {text}" for text, labels in sharing.items())


def missing_seeds(group: Group, rows: pl.DataFrame, when: str = "") -> list[str]:
    """Notes on the seeds that a line lacks: those without a run, and those whose run has no defined value here."""
    every = set(group.runs["seed"].drop_nulls())
    undefined, absent = [], dict[str, list[str]]()
    for key, label in group.labels.items():
        defined = set(rows.filter(pl.col(group.by) == key, pl.col("defined"))["seed"].drop_nulls())
        own = group.runs.filter(pl.col(group.by) == key)["seed"]
        recorded = own.null_count() == 0
        trained = set(own) if recorded else every
        if (missing := trained - defined) and (defined or recorded):
            undefined.append(f"{label}: no defined values{when} from {_named_seeds(missing)}.")
        if lacking := every - trained:
            absent.setdefault(_named_seeds(lacking), []).append(label)
    return undefined + [f"{', '.join(labels)}: no run of {seeds}." for seeds, labels in absent.items()]


def _named_seeds(seeds: Collection[int]) -> str:
    return f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, sorted(seeds)))}"


def merge_notes(tagged: Iterable[tuple[str, str]], tags: Iterable[str]) -> list[str]:
    """Each note once: unchanged if it holds for every tag, else followed by the tags it holds for."""
    holds: dict[str, list[str]] = {}
    for note, tag in tagged:
        holds.setdefault(note, []).append(tag)
    every = set(tags)
    return [
        note if set(of) == every else f"{note.removesuffix('.')} ({', '.join(dict.fromkeys(of))})."
        for note, of in holds.items()
    ]


_SPREAD = "sample standard deviation (ddof 1), as far as values can lie there"
_SEEDS = f"thin lines: the seeds, where they are fewer than {FEW_SEEDS}"
_MARKS = {
    "lines": f"Line: arithmetic mean over seeds; {_SEEDS}; band: {_SPREAD}",
    "bars": f"Bar: arithmetic mean over seeds; circles: the seeds; whisker: {_SPREAD}",
    "dots": f"Dot: arithmetic mean over seeds; whisker: {_SPREAD}",
    "dots and rings": "Dot: mean over seeds; rings: the seeds",
    "lines and bars": f"Line or bar: arithmetic mean over seeds; {_SEEDS}; band or whisker: {_SPREAD}",
}
"""What the marks of a figure mean, if there are several seeds."""


def caption(group: Group, summary: pl.DataFrame, seen: str, drawn: str, notes: list[str], marks: str = "lines") -> str:
    """One paragraph: what is seen, what is drawn, the recipe, how it is estimated, notes, and the runs."""
    spread = _MARKS[marks] if (summary["n"] > 1).any() else "Single values, no spread"
    n = f"{spread}; {n_text(group, summary)} ({seeds_text(group)})."
    parts = [seen, drawn, f"{group.recipe}.", n, *dict.fromkeys(notes)]
    sentences = [sentence_case(part) for part in parts if part]
    return " ".join([*sentences, _runs_text(group)]) + "\n"


def _runs_text(group: Group) -> str:
    """The ids of the runs; if they are too many to name, how many there are and where."""
    ids = group.runs["run"].to_list()
    if len(ids) <= _NAMED_RUNS:
        return f"runs: {', '.join(ids)}"
    return f"runs: {len(ids)}, too many to name here; their ids are in {group.source}"


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """One line of a figure: a network or rule along layers, steps or epochs; NaN where there is no value."""

    key: str  # the network or rule: its colour, marker and line style
    label: str
    x: Floats
    mean: Floats
    std: Floats
    n: npt.NDArray[np.int64]
    least: Floats  # smallest value of any seed
    seeds: tuple[Floats, ...] = ()  # the values of each seed
    possible: Bounds = UNLIMITED  # its values lie within

    @property
    def few(self) -> bool:
        """Whether each seed is drawn as a line, because they are too few for a band."""
        return bool(self.seeds) and 2 <= int(self.n.max(initial=0)) < FEW_SEEDS

    def shown(self, log: bool) -> Floats:
        """The means that an axis can show."""
        return np.where(self.mean > 0, self.mean, np.nan) if log else self.mean

    def band(self, log: bool) -> tuple[Floats, Floats]:
        """Mean − and + sample standard deviation, clipped to the possible values; NaN for n < 2.

        Where a store holds an impossible mean, such as an accuracy above 1, the band ends at the mean.
        On a log axis a lower edge that is not above 0 is moved up to the smallest seed, and no edge lies below the
        smallest positive value of the line.
        """
        spread = np.where(self.n >= 2, self.std, np.nan)
        mean = self.shown(log)
        low = np.maximum(mean - spread, np.fmin(self.possible[0], mean))
        high = np.minimum(mean + spread, np.fmax(self.possible[1], mean))
        if log:
            smallest = np.min(self.least[self.least > 0], initial=np.inf)
            low = np.where(low <= 0, self.least, low)
            low = np.where(np.isnan(low), low, np.fmax(low, smallest))
        return low, high

    def extent(self, log: bool) -> Floats:
        """Every value that the axis has to contain."""
        beside = self.shown_seeds(log) if self.few else self.band(log)
        return np.concatenate([self.shown(log), *beside])

    def shown_seeds(self, log: bool) -> list[Floats]:
        """The values of each seed that an axis can show."""
        return [np.where(values > 0, values, np.nan) if log else values for values in self.seeds]

    def gaps(self, *, log: bool, unit: str) -> list[str]:
        """Notes on the points that are not drawn, and why."""
        notes = []
        undefined, unshown = int(np.isnan(self.mean).sum()), self.mean[self.mean <= 0]
        if undefined:
            notes.append(f"{self.label}: {undefined} of {self.mean.size} {unit} undefined, left as gaps.")
        if log and unshown.size:
            what = "exactly 0" if not unshown.any() else "not above 0"
            verb = "is" if unshown.size == 1 else "are"
            notes.append(
                f"{self.label}: {unshown.size} of {self.mean.size} {unit} {verb} {what} "
                "and cannot be shown on a log axis."
            )
        if log and not self.few and (self.shown(True) - np.where(self.n >= 2, self.std, np.nan) <= 0).any():
            notes.append(
                f"{self.label}: where mean − s.d. is not above 0, the spread is drawn down to the smallest seed."
            )
        return notes


def over(rows: pl.DataFrame, by: str, along: str, grid: Iterable[int] | None = None) -> pl.DataFrame:
    """Mean, standard deviation and n over seeds for every value of `by`, at every point of the grid.

    A point without rows has n = 0.  Without a grid each line reaches from its first row to its last, and a point that
    only other lines have is a gap.
    """
    if grid is None:
        ends = rows.group_by(by).agg(first=pl.col(along).min(), last=pl.col(along).max())
        points = ends.join(rows.select(along).unique(), how="cross")
        points = points.filter(pl.col(along).is_between(pl.col("first"), pl.col("last"))).select(by, along)
    else:
        column = pl.DataFrame({along: list(grid)}, schema={along: pl.Int64})
        points = rows.select(pl.col(by).unique()).join(column, how="cross")
    full = points.join(over_seeds(rows, by, along), on=[by, along], how="left")
    return full.with_columns(pl.col("n").fill_null(0)).sort(by, along)


@dataclass(frozen=True)
class Curves:
    """One quantity of a group of runs: its rows, their summary, and a line for each network or rule with rows."""

    group: Group
    rows: pl.DataFrame
    summary: pl.DataFrame
    lines: list[Series]

    def __getitem__(self, key: str) -> Series:
        return next(line for line in self.lines if line.key == key)

    def extents(self, *, log: bool) -> list[Floats]:
        """Every value that the axis has to contain, per line."""
        return [line.extent(log) for line in self.lines]

    def gaps(self, *, log: bool, unit: str = "layers") -> list[str]:
        """Notes on the points that are not drawn, and on seeds without a value."""
        notes = [note for line in self.lines for note in line.gaps(log=log, unit=unit)]
        return notes + missing_seeds(self.group, self.rows)


def curves(group: Group, rows: pl.DataFrame, along: str, grid: Iterable[int] | None = None) -> Curves:
    """The lines of a group in the order of its labels."""
    summary = over(rows, group.by, along, grid)
    present = set(summary[group.by])
    named = rows["metric"].unique() if "metric" in rows.columns else ()
    bounds = {bounds_of(name) for name in named}
    possible = bounds.pop() if len(bounds) == 1 else UNLIMITED
    lines = []
    for key, label in group.labels.items():
        if key in present:
            line = series_of(summary.filter(pl.col(group.by) == key), key, label, along)
            seeds = _by_seed(rows.filter(pl.col(group.by) == key), along, line.x)
            lines.append(replace(line, seeds=seeds, possible=_unless_exceeded(possible, seeds)))
    return Curves(group, rows, summary, lines)


def _by_seed(rows: pl.DataFrame, along: str, x: Floats) -> tuple[Floats, ...]:
    """The values of each seed along the line, NaN where it has none."""
    place = {at: index for index, at in enumerate(x.tolist())}
    found: dict[int, Floats] = {}
    known = rows.filter(pl.col("defined") & pl.col("value").is_finite()).sort("seed", along)
    for seed, at, value in known.select("seed", along, "value").iter_rows():
        if at in place:
            found.setdefault(seed, np.full(x.size, np.nan))[place[at]] = value
    return tuple(found.values())


def _unless_exceeded(possible: Bounds, seeds: Sequence[Floats]) -> Bounds:
    """No bounds if a value exceeds them: the metric is on another scale then, and no band is clipped."""
    exceeded = any(np.nanmin(values) < possible[0] or np.nanmax(values) > possible[1] for values in seeds)
    return UNLIMITED if exceeded else possible


def series_of(summary: pl.DataFrame, key: str, label: str, along: str) -> Series:
    """The summary of one line as arrays."""
    part = summary.sort(along)
    x, mean, std, least = (
        part[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in (along, "mean", "std", "least")
    )
    return Series(key=key, label=label, x=x, mean=mean, std=std, n=part["n"].to_numpy(), least=least)


def point(key: str, label: str, x: float, mean: float, std: float, n: int, possible: Bounds = UNLIMITED) -> Series:
    """A line of one point; its mean and standard deviation may be NaN."""
    at, value, spread, least = (np.array([number], dtype=np.float64) for number in (x, mean, std, np.nan))
    return Series(key=key, label=label, x=at, mean=value, std=spread, n=np.array([n]), least=least, possible=possible)


def with_n(lines: Sequence[Series]) -> dict[str, str]:
    """The label of each line in the legend, by key; with its n if the lines have different numbers of seeds."""
    spans = {
        key: count_range(int(n) for line in lines if line.key == key for n in line.n)
        for key in dict.fromkeys(line.key for line in lines)
    }
    labels = {line.key: line.label for line in lines}
    if len(set(spans.values())) <= 1:
        return labels
    return {key: f"{label} (n = {spans[key]})" for key, label in labels.items()}


def line_notes(lines: Sequence[Series], *, log: bool, unit: str = "epochs") -> list[str]:
    """Notes on gaps, on lines that start late or end early, and on n that changes along a line."""
    if not lines:
        return []
    first, last = min(line.x[0] for line in lines), max(line.x[-1] for line in lines)
    notes = []
    for line in lines:
        notes += line.gaps(log=log, unit=unit)
        if line.x[0] > first:
            notes.append(f"{line.label}: starts at {unit[:-1]} {line.x[0]:.0f}.")
        if line.x[-1] < last:
            notes.append(f"{line.label}: ends at {unit[:-1]} {line.x[-1]:.0f}.")
        notes += _changing_n(line, unit)
    return notes


def _changing_n(line: Series, unit: str) -> list[str]:
    there = line.n > 0
    x, n = line.x[there], line.n[there]
    starts = np.flatnonzero(np.r_[True, n[1:] != n[:-1]]) if n.size else np.array([], dtype=np.int64)
    if starts.size < 2:
        return []
    if starts.size > 3:
        return [f"{line.label}: n varies between {n.min()} and {n.max()} along the line."]
    parts = [f"{n[at]} up to {unit[:-1]} {x[after - 1]:.0f}" for at, after in itertools.pairwise(starts)]
    return [f"{line.label}: n = {', '.join(parts)}, {n[-1]} after."]


def places_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Run, metric and epoch of the rows, and whether they are defined: about once for all layers, to save memory."""
    columns = ("run", "metric", "epoch", "defined")
    return pl.concat([rows.select(columns).clear(), *(part.select(columns).unique() for part in rows.iter_slices())])


def common_epoch(rows: pl.DataFrame) -> int | None:
    """The last epoch at which every run has every metric it has at all."""
    held = rows.group_by("run", "metric").agg(pl.col("epoch").unique())  # a third of the memory of unique rows
    counts = held.explode("epoch").group_by("epoch").len()
    shared = counts.filter(pl.col("len") == held.height)["epoch"].to_list()
    return int(max(shared)) if shared else None


def latest(rows: pl.DataFrame, epoch: int | None) -> tuple[pl.DataFrame, list[str]]:
    """The rows of one epoch, by default the last, and a note if some runs have none there or later ones."""
    last = max(rows["epoch"].to_list())
    chosen = rows.filter(pl.col("epoch") == (last if epoch is None else epoch))
    runs, lacking = rows["run"].n_unique(), rows["run"].n_unique() - chosen["run"].n_unique()
    if lacking:
        return chosen, [f"{lacking} of {runs} runs have no values at epoch {last}."]
    if epoch is not None and last > epoch:
        return chosen, [f"Epoch {epoch} is the last that every run has; some have values up to epoch {last}."]
    return chosen, []
