"""The loss of the best constant answer, and how far a loss came from there."""

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from sonde.analysis.diagnosis.run_record import (
    BINARY_LOSSES,
    CLASS_LOSSES,
    DISTANCE_LOSSES,
    EARLY,
    MAP_LOSSES,
    SHAPE_OPS,
    RunRecord,
)

_SMOOTHING = frozenset({"Sum", "Neg", "MaskedFill", "Add", "Mul", "Div"})  # of labels, beside the log-softmax
FEW_TARGETS = 32  # with fewer, the best constant answer to them is not that to others


def _log_classes(classes: Any) -> float | None:
    """log(classes), if a configuration has a valid number."""
    return math.log(classes) if isinstance(classes, int) and classes > 0 else None


CONSTANT_LOSS: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
    "identity": lambda task: 1 / 3,  # the variance of U(−1, 1)
    "linear_quadratic": lambda task: None,  # targets do not depend on inputs: no network beats a constant
    "teacher": lambda task: _log_classes(task.get("classes")),
    "digits": lambda task: math.log(10),
    "parity": lambda task: math.log(2),
    "rhm": lambda task: _log_classes(task.get("classes")),
    "cifar10": lambda task: math.log(10),
}
"""The loss of a constant answer by task: the mean of the targets, or equal probabilities for all classes.

None where it does not tell whether a run learns.
"""


def loss_score(trials: Mapping[str, Any], loss: float | None) -> float | None:
    """How far a loss on the batch of the experiments came, from the best constant answer (0) to the lowest loss (1).

    None where the experiments do not know both of these, or where they are equal.
    """
    known = trials.get("loss")
    known = known if isinstance(known, Mapping) else {}
    trivial, floor = known.get("trivial"), known.get("floor")
    if loss is None or trivial is None or floor is None or not trivial - floor > 1e-9 * max(1.0, abs(trivial)):
        return None
    return float((trivial - loss) / (trivial - floor))


def loss_of_constant(s: RunRecord) -> float | None:
    """The loss of the best constant answer: as the task of a trained run says; of a watched one from the targets
    seen, where the operations of the loss show a plain cross-entropy or mean squared error.
    """
    if s.audited is not None:
        known: float | None = s.facts["constant_loss"]
        return known
    if not s.facts.get("output_shape") or not s.loss_ops or s.first_loss is None:
        return None
    if s.facts.get("loss_weighted") and s.loss_ops & BINARY_LOSSES:
        return None
    if s.loss_ops <= {"MseLoss", *SHAPE_OPS} and "MseLoss" in s.loss_ops:
        return _variance(s)
    if s.is_distance and not s.loss_ops & (DISTANCE_LOSSES - {"L1Loss"}):
        return _deviation(s)
    return _entropy(s)


def _deviation(s: RunRecord) -> float | None:
    """The mean absolute error of the median of each target; None where the loss may be no mean."""
    targets, out = _only_targets(s), s.at("out_rms", "(model)")
    size, apart = targets.get("rms"), targets.get("feature_deviation")
    if not apart or size is None or out is None or math.prod(targets["shape"]) < FEW_TARGETS:
        return None
    return float(apart) if s.losses.get(0, math.inf) <= 1.1 * (size + out) else None


def _variance(s: RunRecord) -> float | None:
    """The mean squared error of the mean of each target; None where the loss may be no mean."""
    targets = _only_targets(s)
    size, out = targets.get("rms"), s.at("out_rms", "(model)")
    pooled = pooled_variance(s)
    spread = targets.get("feature_variance") if pooled is None else pooled
    if not spread or size is None or out is None or s.first_loss is None:
        return None
    return float(spread) if s.losses.get(0, s.first_loss) <= 1.1 * (size + out) ** 2 else None


def pooled_variance(s: RunRecord) -> float | None:
    """The variance of targets over the watched steps, about the mean of each feature; None where they were not seen.

    Of all variance the features have the share that they have in the first step.
    """
    spreads, means = s.of_run("target_spread"), s.of_run("target_mean")
    of_all, of_features = (_only_targets(s).get(key) for key in ("std", "feature_variance"))
    if "MseLoss" not in s.loss_ops or min(len(spreads), len(means)) < EARLY or not of_all or not of_features:
        return None
    pooled = statistics.fmean(x * x for x in spreads.values()) + statistics.pvariance(means.values())
    return float(pooled * of_features / of_all**2)


def _entropy(s: RunRecord) -> float | None:
    """The entropy of the shares of classes."""
    shape, ops = s.facts["output_shape"], s.loss_ops
    named, binary = ops & CLASS_LOSSES, ops & BINARY_LOSSES
    known = CLASS_LOSSES | BINARY_LOSSES | SHAPE_OPS | (_SMOOTHING if _is_smoothed(s) else frozenset())
    if not named | binary or ops - known or len(shape) < 1 + bool(named):
        return None
    classes = 2 if binary else _classes(s)
    if classes is None or s.first_loss is None:
        return None
    many = math.prod(shape) // (1 if binary else classes)
    equal = math.log(classes)
    one = min(equal, _entropy_of_targets(s, classes))
    summed = abs(s.first_loss - many * equal) < 0.2 * many * equal
    return (many * one if summed and many > 3 else one) or None


def _is_smoothed(s: RunRecord) -> bool:
    """Whether a cross-entropy smooths its labels: equal shares then still cost log(classes)."""
    return s.loss_ops >= {"MaskedFill", "Neg"} and bool(s.loss_ops & CLASS_LOSSES)


def _entropy_of_targets(s: RunRecord, classes: int) -> float:
    """The entropy of the targets seen; ∞ where they are too few, smoothed, weighted, not known, or where a draw from
    equal shares explains it: twice their number times what is missing to log(classes) is then a χ².
    """
    known, many = _only_targets(s).get("entropy"), math.prod(_only_targets(s).get("shape") or [0])
    changed = _is_smoothed(s) or s.facts.get("loss_weighted")
    if known is None or many < FEW_TARGETS or changed:
        return math.inf
    free = classes - 1
    by_chance = 2 * many * (math.log(classes) - known) < free + 3 * math.sqrt(2 * free)
    return math.inf if by_chance else float(known)


def _only_targets(s: RunRecord) -> Mapping[str, Any]:
    """Statistics of the first step's targets, where the loss was called once."""
    known = s.facts.get("targets") or []
    return known[0] if len(known) == 1 else {}


def _classes(s: RunRecord) -> int | None:
    """The number of classes of a cross-entropy: the size of the class axis of the output.

    As it is (samples × classes × …), or as the loss sees it (places × classes); where neither is known, the one
    axis that the targets lack.
    """
    shape, ops = s.facts["output_shape"], s.loss_ops
    if len(shape) == 2:
        return int(shape[-1])
    if ops & MAP_LOSSES and not ops & {"Transpose", "Permute"}:
        return int(shape[1])
    in_loss = s.facts.get("loss_shape") or []
    if len(in_loss) > 1 and math.prod(in_loss) == math.prod(shape):
        return int(in_loss[1])
    targets = [known["shape"] for known in s.facts.get("targets") or []][:1]
    fitting = {shape[axis] for axis in (1, -1) if targets == [[*shape[:axis], *shape[axis:][1:]]]}
    return int(fitting.pop()) if len(fitting) == 1 else None
