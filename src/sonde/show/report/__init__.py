"""One self-contained HTML page from stored runs: everything on it, gathered from a store.

Studies are imported, and their configurations built, only where the store holds a trained run.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import polars as pl

import sonde
from sonde.analysis.diagnosis import DIAGNOSES
from sonde.analysis.evidence import Evidence
from sonde.analysis.explanations import EXPLANATIONS, documented
from sonde.analysis.runs import by_recipe
from sonde.metrics import TRAINED, base_of
from sonde.show.report.charts import Sweep, sweep_of
from sonde.show.report.runs import (
    LabelledRun,
    ScalingSection,
    WatchedSection,
    label_runs,
    sample,
    scaling_sections,
    watched_sections,
)
from sonde.store.files import Place
from sonde.store.load import RowReader, load
from sonde.store.run import Runs

if TYPE_CHECKING:
    from sonde.show.report.answers import StudyAnswer
    from sonde.studies.study import StudyFinding


def counted(present: int, expected: int) -> str:
    """How many runs of those that are expected: never more."""
    if not 0 <= present <= expected:
        raise AssertionError(f"{present} of {expected} runs: they were counted in different ways")
    return f"{present:,} of {expected:,} runs"


@dataclass(frozen=True, kw_only=True)
class Section:
    """A study at one scale, or runs of one recipe that belong to no study."""

    study: str
    scale: str  # in words
    question: str
    anchor: str  # its id on the page
    findings: Sequence["StudyFinding"] = field(default_factory=list)
    answer: "StudyAnswer | None" = None
    evidence: Evidence
    expected: int  # how many runs the study has with the seeds that are stored
    present: int | None = None  # how many of these are complete; None: all runs of the evidence
    left_out: Mapping[str, str] = field(default_factory=dict)  # runs of the study that are not complete → why
    beside: Sequence[str] = ()  # runs of another recipe that the study trains, too
    drawn_as: str  # the study whose figures are drawn

    @property
    def about(self) -> str:
        """The question, with a capital letter."""
        return f"{self.question[0].upper()}{self.question[1:]}"

    @property
    def runs(self) -> list[str]:
        """The ids of its runs."""
        return [*self.evidence.runs["run"], *self.beside]

    @property
    def counted(self) -> str:
        """How many of the expected runs are there, and how many others belong to the study's second recipe."""
        present = self.evidence.runs.height if self.present is None else self.present
        others = len(self.runs) - present
        return counted(present, self.expected) + (f" and {others:,} more" if others else "")

    @property
    def seeds(self) -> list[int | None]:
        """The seeds of its runs, sorted."""
        return self.evidence.runs["seed"].unique().sort().to_list()


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A verdict: `state` is good, bad, mixed, open or none, and has a colour and a shape."""

    state: str
    words: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class VerdictLine:
    """The verdict on one rule, and its answer to each question."""

    name: str
    verdict: Mark
    answers: Mapping[str, Mark]  # D1 … D4
    accuracy: str


@dataclass(frozen=True, kw_only=True)
class AuditTable:
    """The audit of one recipe, or of several that were run under one rule each."""

    title: str
    about: str
    verdicts: Sequence[VerdictLine]
    columns: Mapping[str, str]  # heading → left or right
    lines: Sequence[Sequence[str]]
    sentences: Sequence["StudyFinding"]
    notes: Sequence[str]
    recipe: Mapping[str, str]  # key → value, what the runs share
    several: bool  # rules of one recipe, which are compared with each other


@dataclass(frozen=True, kw_only=True)
class AuditPart:
    """Every recipe's audit, when each question fires, and the runs that were left out."""

    tables: Sequence[AuditTable] = ()
    thresholds: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None  # why there is no audit


@dataclass(frozen=True, kw_only=True)
class Term:
    """A word of the page and what it means."""

    name: str  # as `sonde explain` knows it
    kind: str
    words: tuple[str, ...]  # as the page writes it
    short: str
    measured: str

    @property
    def key(self) -> str:
        """Its id on the page."""
        return f"term-{self.kind}-{self.name}"


@dataclass(frozen=True, kw_only=True)
class ReportContents:
    """Everything on the page."""

    title: str
    source: str
    written: str  # date and version
    runs: Sequence[LabelledRun]
    rows: pl.DataFrame  # of the runs that may be shown, at least
    sections: Sequence[Section] = ()
    audit: AuditPart = field(default_factory=lambda: AuditPart(reason="the store holds no trained run"))
    in_no_study: Mapping[str, str] = field(default_factory=dict)  # run → why
    remarks: Sequence[str] = ()
    watched: Sequence[WatchedSection] = ()
    scaling: Sequence[ScalingSection] = ()
    glossary: Sequence[Term] = ()
    sweep: Sweep = field(default_factory=Sweep)

    @property
    def answered(self) -> list[Section]:
        """The sections that have an answer."""
        return [section for section in self.sections if section.answer is not None]


MOST_HELD_BYTES = 16_000_000  # of files with rows: about two million rows, or 200 MB in memory

_LAST_EPOCH = pl.col("epoch") == pl.col("epoch").max().over("run", "metric")
_TOP_LAYER = pl.col("layer").is_null() | (pl.col("layer") == pl.col("layer").max().over("run", "metric", "epoch"))


def read_for_report(root: str | Place) -> tuple[Runs, RowReader | None]:
    """The runs of a store and their rows.

    Of a large store only the rows that describe where each run ended, and a reader of the others.
    """
    reader = RowReader(root)
    if reader.packed_bytes <= MOST_HELD_BYTES:
        return load(root), None
    return load(root, _LAST_EPOCH & _TOP_LAYER), reader


def report_contents(stored: Runs, *, source: str, title: str, reader: RowReader | None = None) -> ReportContents:
    """Gather everything the store holds, study by study and run by run.

    With a `reader`, `stored` has the rows of `read_for_report`, and each part of the page reads those that it shows.
    """
    recipes = by_recipe(stored.runs) if stored.runs else []
    runs = label_runs(stored.runs, recipes) if stored.runs else []
    watched = watched_sections(stored)
    contents = ReportContents(
        title=title,
        source=source,
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC by sonde {sonde.__version__}",
        runs=runs,
        rows=stored.rows if reader is None else reader([one.run.id for one in sample(runs)]),
        watched=watched,
        scaling=scaling_sections(watched),
        glossary=_glossary(stored, watched),
        sweep=sweep_of(stored.runs, recipes, stored.rows) if stored.runs else Sweep(),
    )
    if stored.runs:
        from sonde.show.report.sections import with_trained_parts

        contents = with_trained_parts(contents, stored, reader)
    named = {run for section in contents.sections for run in section.left_out}
    broken = {run: why for run, why in stored.broken.items() if run not in named}
    return replace(contents, in_no_study={**contents.in_no_study, **broken})


# ── glossary ────────────────────────────────────────────────────────────────────────────────────────
_WORDS: dict[str, tuple[str, ...]] = {"null": ("null", "chance")}
_WORDS |= {name: (name,) for name in ("credit", "ceiling", "depth", "stream", "interval", "undefined")}
_WORDS |= {name: (name, f"{name}s") for name in ("block", "layer", "probe", "rule", "seed", "epoch")}
_OF_TRAINED_RUNS = {("question", one.name): (one.label,) for one in DIAGNOSES.values() if one.label} | {
    ("probe" if metric.probe == metric.name else "metric", metric.name): metric.spellings
    for metric in TRAINED.values()
    if metric.spellings
}
"""(kind, name) → how the page writes it.  Rules are written by their labels, other metrics by their names."""


def _glossary(stored: Runs, watched: Sequence[WatchedSection]) -> list[Term]:
    """The words, metrics and rules of the page, each with its explanation of `sonde explain`."""
    known, spellings = list(EXPLANATIONS), {("word", name): words for name, words in _WORDS.items()}
    if stored.runs:
        from sonde.plugins import BUILT_IN

        known += [text for kind in ("rule", "probe") for text in documented(kind, BUILT_IN[kind])]
        spellings |= _OF_TRAINED_RUNS
        for run in stored.runs:
            spellings["rule", run.config["rule"]["name"]] = (str(run.about["rule_label"]).partition(" (")[0],)
    else:
        written = _words_of(watched)
        spellings = {key: words for key, words in spellings.items() if written & {*words}}
    measured = {*stored.rows["metric"].unique(), *(name for one in watched for name in one.rows["metric"].unique())}
    for metric in measured:
        for kind in ("probe", "metric"):
            spellings.setdefault((kind, base_of(metric)), ())
    terms = [
        Term(name=text.name, kind=text.kind, words=words, short=text.short, measured=text.measured)
        for text in known
        if (words := spellings.get((text.kind, text.name))) is not None
    ]
    return sorted(terms, key=lambda term: ((term.words or (term.name,))[0].casefold(), term.kind))


def _words_of(watched: Sequence[WatchedSection]) -> set[str]:
    """Every word that the page says about watched runs."""
    texts = [f"{section.about} {section.remarks} {section.findings}" for section in watched]
    return set(re.findall(r"\w+", " ".join(texts)))
