"""The caption of a figure: what it shows, n, seeds, recipe and run ids, all read from the runs it was drawn from."""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import polars as pl

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
    "lines and bars": f"Line or bar: arithmetic mean over seeds; {_SEEDS}; band or whisker: {_SPREAD}",
}
"""What the marks of a figure mean, if there are several seeds."""


def caption(group: Group, summary: pl.DataFrame, shown: str, look: str, notes: list[str], marks: str = "lines") -> str:
    """One paragraph: what is shown, the recipe, how it is estimated, what to look at, notes, and the runs."""
    spread = _MARKS[marks] if (summary["n"] > 1).any() else "Single values, no spread"
    n = f"{spread}; {n_text(group, summary)} ({seeds_text(group)})."
    parts = [shown, f"{group.recipe}.", n, look, *dict.fromkeys(notes)]
    sentences = [part[0].upper() + part[1:] for part in parts if part]
    return " ".join([*sentences, _runs_text(group)]) + "\n"


def _runs_text(group: Group) -> str:
    """The ids of the runs; if they are too many to name, how many there are and where."""
    ids = group.runs["run"].to_list()
    if len(ids) <= _NAMED_RUNS:
        return f"runs: {', '.join(ids)}"
    return f"runs: {len(ids)}, too many to name here; their ids are in {group.source}"
