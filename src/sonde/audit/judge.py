"""Who asks the questions of a store, and remembers the answers."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from sonde.audit.margin import Margin, margin
from sonde.audit.subject import Subject, subjects
from sonde.audit.thresholds import Thresholds
from sonde.audit.verdict import RunAudit, judge
from sonde.compare.configurations import complete
from sonde.store.load import Run, Runs


class Judge:
    """Answers of one store.  Studies share runs with the whole store: what was asked once is not asked again."""

    def __init__(self, stored: Runs) -> None:
        self.stored = stored
        self.known: dict[tuple[str, Thresholds], RunAudit] = {}

    def runs(self, runs: Sequence[Run], thresholds: Thresholds) -> list[RunAudit]:
        """The questions asked of every run."""
        return [self._run(run.id, thresholds) for run in runs]

    def margin(
        self, rule: str, runs: Sequence[Run], frozen: Mapping[int, Run], why: str, thresholds: Thresholds
    ) -> Margin:
        """The question asked of a rule; `frozen` has the baseline of each seed, `why` says why there is none."""
        base = {seed: self.subjects[run.id] for seed, run in frozen.items()}
        own = [self.subjects[run.id] for run in runs]
        return margin(rule, own, base, why, thresholds.confidence)

    def _run(self, id: str, thresholds: Thresholds) -> RunAudit:
        key = (id, thresholds)
        if key not in self.known:
            self.known[key] = judge(self.subjects[id], thresholds)
        return self.known[key]

    @cached_property
    def subjects(self) -> dict[str, Subject]:
        inside, _ = complete(self.stored)
        return {subject.run: subject for subject in subjects(self.stored.rows, inside)}
