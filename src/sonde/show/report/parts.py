"""The parts of the page: plain values and tidy rows, whoever gathered them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import polars as pl

from sonde.analysis.evidence import Evidence
from sonde.show.report.charts import Charted
from sonde.show.report.runs import RunLine
from sonde.show.report.watched import WatchedPart


class Said(Protocol):
    """A sentence computed from rows, its cells for a table, and the runs it stands on."""

    @property
    def sentence(self) -> str: ...
    @property
    def shown(self) -> Mapping[str, str]: ...
    @property
    def runs(self) -> Sequence[str]: ...
    @property
    def seeds(self) -> Sequence[int | None]: ...


@dataclass(frozen=True, kw_only=True)
class AuditSentence:
    """A sentence of the audit and the runs it stands on."""

    sentence: str
    runs: Sequence[str]
    seeds: Sequence[int | None]
    shown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Dots:
    """One network or rule: a value for every seed, and what is said beside them."""

    label: str
    style: str  # the rule or model whose colour it has
    values: Mapping[int, float]  # seed → value; NaN where undefined
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A sentence, a chart of dots and how sure they are."""

    sentence: str
    sure: str
    dots: Sequence[Dots]
    axis: str  # what the dots are
    note: str = ""  # what is said beside every row
    log: bool = False
    per_cent: bool = False
    reference: tuple[str, float] | None = None  # a value to stand beside
    beside: Sequence[str] = ()  # sentences about what else the study trained


@dataclass(frozen=True, kw_only=True)
class Section:
    """A study at one scale."""

    study: str
    scale: str  # in words
    question: str
    findings: Sequence[Said]
    evidence: Evidence
    wanted: int  # how many runs the study has with the seeds that are stored
    left_out: Mapping[str, str]  # runs of the study that are not complete → why
    beside: Sequence[str] = ()  # runs of another recipe that the study trains, too
    answer: Answer | None = None
    place: str = ""  # of runs in no study: their anchor
    figures: str = ""  # the study whose figures are drawn of them, where it is not their own

    @property
    def anchor(self) -> str:
        return self.place or f"{self.study}-{self.scale.split()[0]}"

    @property
    def drawn_as(self) -> str:
        """The study whose figures are drawn."""
        return self.figures or self.study

    @property
    def about(self) -> str:
        """The question, in a line."""
        return f"{self.question[0].upper()}{self.question[1:]}"

    @property
    def runs(self) -> list[str]:
        return [*self.evidence.runs["run"], *self.beside]

    @property
    def seeds(self) -> list[int | None]:
        return self.evidence.runs["seed"].unique().sort().to_list()


@dataclass(frozen=True, kw_only=True)
class Term:
    """A word of the page and what it means."""

    name: str  # as `sonde explain` knows it
    kind: str
    words: tuple[str, ...]  # as the page writes it
    short: str
    measured: str


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What differs between runs, and what each measured at its end; lists are in the order of the runs."""

    keys: Sequence[str] = ()
    levels: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # key → its values: numbers, else words
    columns: Mapping[str, Sequence[int]] = field(default_factory=dict)  # key → place among its values
    runs: Sequence[str] = ()
    seeds: Sequence[int] = ()
    complete: Sequence[bool] = ()
    metrics: Sequence[Charted] = ()
    values: Mapping[str, Sequence[float | None]] = field(default_factory=dict)  # metric → value


@dataclass(frozen=True, kw_only=True)
class Opening:
    """An answer at the head of the page, what it is about, and where all that was found stands."""

    id: str
    answer: Answer
    about: str
    more: str  # anchor


@dataclass(frozen=True, kw_only=True)
class AuditTable:
    """The audit of one recipe, or of several that were run under one rule each."""

    title: str
    about: str
    columns: Mapping[str, str]  # heading → left or right
    lines: Sequence[Sequence[str]]
    sentences: Sequence[AuditSentence]
    notes: Sequence[str]
    recipe: Mapping[str, str]  # key → value, what the runs share


@dataclass(frozen=True, kw_only=True)
class AuditPart:
    """Every recipe's audit, when each question fires, and the runs that were not asked."""

    tables: Sequence[AuditTable]
    thresholds: Mapping[str, str]
    left_out: Mapping[str, str]
    reason: str | None = None  # why there is none


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Everything on the page."""

    title: str
    source: str
    written: str  # date and version
    runs: Sequence[RunLine]
    rows: pl.DataFrame
    sections: Sequence[Section]
    audit: AuditPart
    apart: Mapping[str, str]  # runs of no study → why
    remarks: Sequence[str]
    watched: Sequence[WatchedPart] = ()
    glossary: Sequence[Term] = ()
    sweep: Sweep = field(default_factory=Sweep)

    @property
    def answers(self) -> list[Opening]:
        """Of every study that has one."""
        return [
            Opening(
                id=f"answer-{section.anchor}",
                answer=section.answer,
                about=section.about,
                more=section.anchor if section.findings else "audit",
            )
            for section in self.sections
            if section.answer is not None
        ]
