"""Recompute the stored metrics of a run from their definitions, and compare.

It takes one sample at a time, in float64, with plain sums, from the tensors that an ended run stores.  It shares no
code with the probes and the rules that measured the values.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from sonde.analysis.recompute.definitions import DEFINITIONS, MetricKey
from sonde.analysis.recompute.sample import Recomputed, SnapshotInputs
from sonde.analysis.recompute.stored import LastEpoch, shaken
from sonde.core.errors import SondeError, nearest
from sonde.metrics import base_of

FLOAT64_TOLERANCE = 1e-9  # relative, for values that are computed in float64
FLOAT32_TOLERANCE = 1e-6  # for values that are computed in float32
_EPS64, _EPS32 = 2.0**-52, 2.0**-23
_ROUNDINGS = 10  # a difference up to this many times the effect of the last bit of every weight is rounding

_DURING_EPOCH = "measured during the epoch; only its end is stored"

# Metrics of the steps of an epoch, which cannot be recomputed from its end.
MEASURED_DURING_EPOCH = (
    "train_loss",
    "train_acc",
    "batch_loss",
    "state_pred_error",
    "credit_consistency",
    "credit_change",
    "credit_terminal_value",
    "credit_terminal_gradient",
    "ddtp_inverse_error",
)
# Metrics that need a tensor that older versions did not store.
_NEEDS = {"drift": "initial", **dict.fromkeys(("credit_norm", "credit_cosine", "rho", "nudge"), "rule")}


class ValueDifference(NamedTuple):
    """One stored value and the recomputed one; NaN is undefined."""

    metric: str
    layer: int | None
    stored: float
    samples: int
    found: Recomputed
    single: bool
    rounding: float

    @property
    def number(self) -> float:
        """The recomputed value; NaN where it is undefined or not finite."""
        number = self.found.number
        return math.nan if number is None or not math.isfinite(number) else number

    @property
    def absolute(self) -> float:
        """|stored − recomputed|; 0 where one of them is undefined."""
        both = (self.stored, self.number)
        return abs(self.stored - self.number) if not any(map(math.isnan, both)) else 0.0

    @property
    def relative(self) -> float:
        """The difference relative to the value; to the size of its terms, where these cancel."""
        return self.absolute / max(abs(self.stored), abs(self.number), self.found.terms) if self.absolute else 0.0

    @property
    def close(self) -> bool:
        """Whether the relative difference is within the tolerance of the precision of training."""
        return self.relative <= (FLOAT32_TOLERANCE if self.single else FLOAT64_TOLERANCE)

    @property
    def words(self) -> str:
        """Both values in a sentence, with their samples."""
        at = self.metric if self.layer is None else f"{self.metric} at layer {self.layer}"
        said = [_word(self.stored, self.samples), _word(self.number, self.found.samples)]
        return f"{at}: stored {said[0]}, by its definition {said[1]}"

    @property
    def agrees(self) -> bool:
        """Whether the values differ by rounding at most, over the same samples; or both are undefined, or may be."""
        if math.isnan(self.stored) or math.isnan(self.number):
            return math.isnan(self.stored) == math.isnan(self.number) or self.found.either
        same_samples = self.samples == self.found.samples
        return same_samples and (self.close or self.absolute <= max(self.rounding, self.found.rounding))


@dataclass(frozen=True)
class MetricComparison:
    """The comparison of all stored values of a metric."""

    metric: str
    values: int
    undefined: int
    single: bool = False
    worst: ValueDifference | None = None  # by relative difference
    largest: float = 0.0  # absolute difference
    wrong: ValueDifference | None = None  # the first that does not agree
    reason: str | None = None  # why it was not recomputed

    @property
    def verdict(self) -> str:
        """agrees, rounding (beyond the tolerance, within rounding), differs, or not recomputed."""
        if self.reason is not None:
            return "not recomputed"
        if self.wrong is not None:
            return "differs"
        return "agrees" if self.worst is None or self.worst.close else "rounding"


@dataclass(frozen=True)
class Recomputation:
    """The comparison of a run's last epoch, by metric."""

    run: str
    epoch: int
    lines: list[MetricComparison]

    @property
    def wrong(self) -> bool:
        """Whether a value of any metric differs."""
        return any(line.wrong is not None for line in self.lines)

    @property
    def not_recomputed(self) -> dict[str, list[str]]:
        """Reason → metrics."""
        found: dict[str, list[str]] = {}
        for line in self.lines:
            if line.reason is not None:
                found.setdefault(line.reason, []).append(line.metric)
        return found

    def worst(self, *, single: bool) -> ValueDifference | None:
        """The largest relative difference among metrics of one precision."""
        known = [line.worst for line in self.lines if line.worst is not None and line.single == single]
        return max(known, key=lambda difference: difference.relative, default=None)


def recompute(
    end: LastEpoch, metrics: Sequence[str] = (), on_progress: Callable[[int, int], None] = lambda done, of: None
) -> Recomputation:
    """Recompute all stored metrics, or those with these names: `rho`, `rho/null`, `nudge[0.01]`, `drift`."""
    rows = end.rows.filter(pl.col("metric").is_in(_chosen(end.rows["metric"].unique(), metrics)))
    groups = rows.partition_by("metric", maintain_order=True, as_dict=True)
    wanted = dict.fromkeys(_definition_of(str(metric)) for (metric,) in groups)
    found: dict[str, list[ValueDifference]] = {}
    definitions = [name for name in wanted if name in DEFINITIONS]
    for done, name in enumerate(definitions):
        on_progress(done, len(definitions))
        for difference in _differences(name, end, rows):
            found.setdefault(_line_of(difference.metric), []).append(difference)
    stored: dict[str, list[pl.DataFrame]] = {}
    for (metric,), group in groups.items():
        stored.setdefault(_line_of(str(metric)), []).append(group)
    lines = [_line(name, pl.concat(frames), found.get(name, []), end) for name, frames in stored.items()]
    return Recomputation(end.run.id, end.inputs.epoch, lines)


# Metrics that the definition of another probe yields.
_MEASURED_WITH = {
    "state": "trace",
    "weight_ratio": "weight_alignment",
    "grad_per_error": "grad_norm",
    "test_loss": "evaluation",
    "test_acc": "evaluation",
}

_IN_TRAINING_PRECISION = ("evaluation", "grad_resolution")
"""Definitions that run in the precision of training."""


def _chosen(there: Iterable[str], wanted: Sequence[str]) -> list[str]:
    names = sorted(there)
    if not wanted:
        return names
    chosen = []
    for want in wanted:
        some = [name for name in names if want in (name, base_of(name), _definition_of(name))]
        if not some:
            known = {base_of(name) for name in names} | set(names)
            raise SondeError(f"no metric {want!r} was measured at the last epoch: {nearest(want, known)}")
        chosen += some
    return chosen


def _definition_of(metric: str) -> str:
    base = base_of(metric)
    return _MEASURED_WITH.get(base, base)


def _line_of(metric: str) -> str:
    """The name of the comparison: parameters and units of a metric share one."""
    base = base_of(metric)
    return f"{base}[…]" if "[" in metric and base != "nudge" else metric


def _differences(name: str, end: LastEpoch, rows: pl.DataFrame) -> list[ValueDifference]:
    """The differences of all values that a definition yields; if some do not agree, with the effect of rounding."""
    found = _found(name, end.inputs)
    single = name in _IN_TRAINING_PRECISION and end.config.precision != "float64"
    columns = rows.select("metric", "layer", "value", "samples")
    pairs = [
        ValueDifference(metric, layer, value, samples, found[metric, layer], single, 0.0)
        for metric, layer, value, samples in columns.iter_rows()
        if (metric, layer) in found
    ]
    if all(pair.agrees for pair in pairs):
        return pairs
    again = _found(name, shaken(end.inputs, _EPS32 if single else _EPS64))
    return [pair._replace(rounding=_rounding(pair.number, again.get((pair.metric, pair.layer)))) for pair in pairs]


def _found(name: str, inputs: SnapshotInputs) -> dict[MetricKey, Recomputed]:
    return dict(DEFINITIONS[name](inputs))


def _rounding(number: float, again: Recomputed | None) -> float:
    if again is None or again.number is None:
        return 0.0
    change = _ROUNDINGS * abs(number - again.number)
    return change if math.isfinite(change) else 0.0


def _line(name: str, stored: pl.DataFrame, found: list[ValueDifference], end: LastEpoch) -> MetricComparison:
    undefined = stored.filter(~pl.col("defined")).height
    if not found:
        return MetricComparison(name, stored.height, undefined, reason=_why_not(name, end))
    if len(found) < stored.height:
        known = {(difference.metric, difference.layer) for difference in found}
        others = [key for key in stored.select("metric", "layer").iter_rows() if key not in known]
        raise SondeError(f"run {end.run.id} stores {others[0]}, which its network does not have")
    return MetricComparison(
        name,
        stored.height,
        undefined,
        found[0].single,
        worst=max(found, key=lambda difference: difference.relative),
        largest=max(difference.absolute for difference in found),
        wrong=next((difference for difference in found if not difference.agrees), None),
    )


def _why_not(name: str, end: LastEpoch) -> str:
    if name in MEASURED_DURING_EPOCH:
        return _DURING_EPOCH
    missing = end.missing.get("null" if "/null" in name else _NEEDS.get(base_of(name), ""))
    return missing or "this version has no definition of it"


def _word(value: float, samples: int) -> str:
    return "undefined" if math.isnan(value) else f"{value:.12g} (n = {samples})"
