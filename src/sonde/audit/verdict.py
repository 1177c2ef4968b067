"""The audit of a rule: three answers of every seed, one over all seeds, and the numbers beside them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sonde.audit.answer import Answer
from sonde.audit.credit import LayerCredit, at_layers, credit
from sonde.audit.margin import Margin
from sonde.audit.questions import gradient, scale
from sonde.audit.subject import CONTROLLED, Cell, Subject
from sonde.audit.thresholds import Thresholds
from sonde.statistics import Summary, summarise

QUESTIONS = ("D1", "D2", "D3")
"""Asked of every run; D4 is asked of the rule."""


@dataclass(frozen=True, kw_only=True)
class RunAudit:
    """One run's answers."""

    subject: Subject
    answers: dict[str, Answer]
    credits: list[LayerCredit]  # when D3 was last asked; none where credit is trivial


@dataclass(frozen=True, kw_only=True)
class Diverged:
    """A run that came to no end: its loss or weights were not finite after an epoch."""

    run: str
    seed: int
    epoch: int


@dataclass(frozen=True, kw_only=True)
class Tally:
    """One question over seeds.  There is no vote: it fired in k of n seeds, and the sentence says so."""

    fired: dict[int, Answer]
    clear: dict[int, Answer]
    undefined: dict[int, Answer]
    not_asked: dict[int, Answer]

    @property
    def n(self) -> int:
        return len(self.fired) + len(self.clear) + len(self.undefined)

    @property
    def reason(self) -> str | None:
        """Why it is undefined, where it is."""
        return next((answer.reason for answer in self.undefined.values()), None)


@dataclass(frozen=True, kw_only=True)
class Controlled:
    """A mean over the deep layers with its null and its ceiling, each over seeds."""

    metric: str
    layers: tuple[int, ...]
    value: Summary
    null: Summary
    ceiling: Summary


@dataclass(frozen=True, kw_only=True)
class RuleAudit:
    """One rule of a recipe."""

    rule: str
    label: str
    options: dict[str, Any]
    depth: int
    runs: list[RunAudit]  # in the order of seeds
    margin: Margin  # D4
    diverged: list[Diverged]  # in the order of seeds
    left_out: dict[str, str]  # runs of this rule and recipe that have not come to their end
    thresholds: Thresholds

    @property
    def seeds(self) -> list[int]:
        return [run.subject.seed for run in self.runs]

    @property
    def ids(self) -> list[str]:
        return [run.subject.run for run in self.runs]

    @property
    def ended(self) -> list[str]:
        """All runs the verdict stands on: those whose numbers it has, and those that diverged."""
        return [*self.ids, *(one.run for one in self.diverged)]

    def tally(self, question: str) -> Tally:
        answers = {run.subject.seed: run.answers[question] for run in self.runs}

        def of(wanted: Callable[[Answer], bool]) -> dict[int, Answer]:
            return {seed: answer for seed, answer in answers.items() if wanted(answer)}

        return Tally(
            fired=of(lambda answer: answer.fired is True),
            clear=of(lambda answer: answer.fired is False),
            undefined=of(lambda answer: answer.asked and answer.fired is None),
            not_asked=of(lambda answer: not answer.asked),
        )

    def value(self, question: str) -> Summary:
        """The question's quantity at the end, over seeds."""
        answers = [run.answers[question] for run in self.runs]
        reason = next((answer.reason for answer in answers if answer.reason), "no value is defined")
        return summarise((answer.value for answer in answers), reason)

    def scalar(self, metric: str) -> Summary:
        """A metric of the whole network at the last epoch, over seeds."""
        return _over_seeds([run.subject.at(metric, run.subject.epochs) for run in self.runs])

    def controlled(self, metric: str) -> Controlled:
        """A measure of the credit at the last epoch: its mean over layers 1 … L−1, beside null and ceiling."""
        chosen = [run.subject for run in self.runs]
        of = {
            control: _over_seeds([run.mean(metric + control, run.epochs, run.deep) for run in chosen])
            for control in ("", "/null", "/bp")
        }
        layers = tuple(range(1, self.depth))
        return Controlled(metric=metric, layers=layers, value=of[""], null=of["/null"], ceiling=of["/bp"])

    @cached_property
    def measures(self) -> dict[str, Controlled]:
        return {metric: self.controlled(metric) for metric in CONTROLLED}


def judge(subject: Subject, thresholds: Thresholds) -> RunAudit:
    """The three questions of one run."""
    answers = {
        "D1": scale(subject, thresholds),
        "D2": gradient(subject, thresholds),
        "D3": credit(subject, thresholds),
    }
    trivial = subject.rule in ("bp", "frozen")
    epoch = answers["D3"].epoch
    credits = [] if trivial or epoch is None else at_layers(subject, epoch, thresholds)
    return RunAudit(subject=subject, answers=answers, credits=credits)


def _over_seeds(cells: Sequence[Cell]) -> Summary:
    reason = next((cell.reason for cell in cells if cell.reason), "no value is defined")
    return summarise((cell.value for cell in cells), reason)
