"""Who asks the questions of a store, and remembers the answers."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from sonde.audit.subject import Subject, subjects
from sonde.audit.thresholds import Thresholds
from sonde.audit.verdict import RunAudit, judge
from sonde.compare.configurations import complete
from sonde.store.load import Run, Runs


class Judge:
    """Answers of one store.  Studies share rules with the whole store: what was asked once is not asked again."""

    def __init__(self, stored: Runs) -> None:
        self.stored = stored
        self.known: dict[tuple[object, ...], list[RunAudit]] = {}

    def __call__(
        self, runs: Sequence[Run], frozen: Mapping[int, Run], why: str, thresholds: Thresholds
    ) -> list[RunAudit]:
        """The four questions of the runs of one rule; `frozen` has the baseline of each seed."""
        ids = (tuple(run.id for run in runs), tuple(run.id for run in frozen.values()))
        key = (*ids, why, thresholds)
        if key not in self.known:
            base = {seed: self.subjects[run.id] for seed, run in frozen.items()}
            self.known[key] = judge([self.subjects[run.id] for run in runs], base, why, thresholds)
        return self.known[key]

    @cached_property
    def subjects(self) -> dict[str, Subject]:
        inside, _ = complete(self.stored)
        return {subject.run: subject for subject in subjects(self.stored.rows, inside)}
