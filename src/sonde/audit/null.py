"""What a random vector scores in credit's place: mean and standard error, for each epoch and layer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sonde.audit.subject import Subject
from sonde.statistics import summarise


@dataclass(frozen=True, kw_only=True)
class Null:
    """The chance level of one metric at one epoch and layer, and where its standard error comes from."""

    mean: float
    standard_error: float
    basis: str
    reason: str | None = None  # why there is none


class Nulls:
    """Chance levels of one rule, over the seeds it was run with.

    The standard error is the sample standard deviation of the null over seeds.  Two or three seeds estimate it
    badly and one not at all, so it is never taken below what independent samples give: 1/√(d·N) for a cosine of
    N samples of width d; √(1/d + 1/K)/√N for ρ along K directions.

    Caveat: the null draws a vector for each sample.  Feedback that all samples share scatters more than it does
    before any alignment, so an excess of a few standard errors is weak evidence.
    """

    def __init__(self, subjects: Sequence[Subject]) -> None:
        self.subjects = subjects
        self._known: dict[tuple[str, int, Sequence[int]], list[Null]] = {}

    def across(self, metric: str, epoch: int, layers: Sequence[int]) -> list[Null]:
        """The chance levels of one epoch, layer by layer."""
        key = (metric, epoch, layers)
        if key not in self._known:
            self._known[key] = [self._measure(metric, epoch, layer) for layer in layers]
        return self._known[key]

    def _measure(self, metric: str, epoch: int, layer: int) -> Null:
        name = f"{metric}/null"
        cells = [subject.at(name, epoch, layer) for subject in self.subjects]
        known = summarise([cell.value for cell in cells])
        if known.n == 0:
            reason = next((cell.reason for cell in cells if cell.reason), "no value is defined")
            return Null(mean=math.nan, standard_error=math.nan, basis="none", reason=reason)
        sizes = {
            (subject.width, subject.directions, cell.samples)
            for subject, cell in zip(self.subjects, cells, strict=True)
            if cell.reason is None and cell.samples > 0
        }
        floor = max((_independent(metric, *size) for size in sizes), default=math.nan)
        spread = known.std if known.n > 1 else math.nan
        if math.isnan(floor) and math.isnan(spread):
            reason = f"{metric}/null has one value and does not say from how many samples"
            return Null(mean=known.mean, standard_error=math.nan, basis="none", reason=reason)
        if math.isnan(floor) or spread > floor:
            basis, error = f"spread over {known.n} seeds", spread
        else:
            basis, error = "1/√(d·N)" if metric == "credit_cosine" else "√(1/d + 1/K)/√N", floor
        return Null(mean=known.mean, standard_error=error, basis=basis)


def _independent(metric: str, width: int, directions: int, samples: int) -> float:
    one = 1 / width + (1 / directions if metric == "rho" else 0)
    return math.sqrt(one / samples)
