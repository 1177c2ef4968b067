"""The caption of a figure and what is in it: n, seeds, recipe, runs, all read from the runs it was drawn from."""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import polars as pl

NAMED_RUNS = 8  # so many are named in a caption


class Group(Protocol):
    """The runs of a figure and the lines they make."""

    @property
    def runs(self) -> pl.DataFrame: ...
    @property
    def by(self) -> str: ...  # the column of the runs that tells the lines apart
    @property
    def labels(self) -> Mapping[str, str]: ...  # of every line
    @property
    def recipe(self) -> str: ...  # what the runs have in common
    @property
    def source(self) -> str: ...  # where they were read


def span(counts: Iterable[int]) -> str:
    """One number, or the least and the most: "3", "2–3"; zeros count only where there is nothing else."""
    positive = sorted({n for n in counts if n > 0}) or [0]
    return "–".join(map(str, dict.fromkeys([positive[0], positive[-1]])))


def n_text(group: Group, summary: pl.DataFrame) -> str:
    """How many seeds the values stand on: "n = 3 seeds", with the range where it varies."""
    noun = "run" if group.runs["seed"].null_count() else "seed"
    counts = {key: summary.filter(pl.col(group.by) == key)["n"].to_list() for key in group.labels}
    spans = {key: span(of_key) for key, of_key in counts.items()}
    if len(set(spans.values())) == 1:
        n = next(iter(spans.values()))
        return f"n = {n} {noun if n == '1' else noun + 's'}"
    if len(spans) > 2:
        n = span(n for of_key in counts.values() for n in of_key)
        return f"n = {n} {noun if n == '1' else noun + 's'}"
    return f"n = {' and '.join(f'{n} ({group.labels[key]})' for key, n in spans.items())} {noun}s"


def seeds_text(group: Group) -> str:
    """The seeds of every line, or that a file does not record them; lines with the same seeds together."""
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
    """Which seeds a line lacks: those of which it has no run, and those whose run has no defined value here."""
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
    """Each note once: as it is where it holds for every tag, else with those it holds for."""
    holds: dict[str, list[str]] = {}
    for note, tag in tagged:
        holds.setdefault(note, []).append(tag)
    every = set(tags)
    return [
        note if set(of) == every else f"{note.removesuffix('.')} ({', '.join(dict.fromkeys(of))})."
        for note, of in holds.items()
    ]


SPREAD = "sample standard deviation (ddof 1), as far as values can lie there"
MARKS = {
    "lines": f"Line: arithmetic mean over seeds; thin lines: the seeds, where they are fewer than 5; band: {SPREAD}",
    "bars": f"Bar: arithmetic mean over seeds; circles: the seeds; whisker: {SPREAD}",
    "dots": f"Dot: arithmetic mean over seeds; whisker: {SPREAD}",
    "lines and bars": (
        "Line or bar: arithmetic mean over seeds; thin lines: the seeds, where they are fewer than 5; "
        f"band or whisker: {SPREAD}"
    ),
}
"""What the marks of a figure are, where they stand on several seeds."""


def caption(group: Group, summary: pl.DataFrame, shown: str, look: str, notes: list[str], marks: str = "lines") -> str:
    """One paragraph: what is shown, from which runs and how estimated, and what to look at."""
    spread = MARKS[marks] if (summary["n"] > 1).any() else "Single values, no spread"
    n = f"{spread}; {n_text(group, summary)} ({seeds_text(group)})."
    parts = [shown, f"{group.recipe}.", n, look, *dict.fromkeys(notes)]
    sentences = [part[0].upper() + part[1:] for part in parts if part]
    return " ".join([*sentences, runs_text(group)]) + "\n"


def runs_text(group: Group) -> str:
    """The ids of the runs; where they are too many to name, how many there are and where."""
    ids = group.runs["run"].to_list()
    if len(ids) <= NAMED_RUNS:
        return f"runs: {', '.join(ids)}"
    return f"runs: {len(ids)}, too many to name here; their ids are in {group.source}"
