"""Parameters: how far each tensor moved, and how the matrices that carry credit back compare with the weights."""

import math
from collections.abc import Iterator

from torch import Tensor

from sonde.metrics.probes.snapshot import Snapshot
from sonde.metrics.reductions import cosines, rms
from sonde.metrics.rows import Reading, undefined


def drift(snapshot: Snapshot) -> Iterator[Reading]:
    """‖W − W_init‖/‖W_init‖ of every parameter tensor, as `drift[name]`; undefined where W_init is zero."""
    initial = snapshot.context.initial
    for name, parameter in snapshot.net.named_parameters():
        metric = f"drift[{name}]"
        if initial is None:
            yield undefined(metric, "the initial weights are not known")
            continue
        start = initial[name].to(parameter.device).double()
        length = rms(start)
        if length > 0:
            value = rms(parameter - start) / length
            yield Reading(metric=metric, value=value, samples=0)  # of weights, not of samples
        else:
            yield undefined(metric, "the initial tensor is zero")


NO_MATRICES = "the rule replaces no weight matrix of this block on the way back"
ZERO = "one of the matrices is zero or not finite"


def weight_alignment(snapshot: Snapshot) -> Iterator[Reading]:
    """cos(V, W) of every weight matrix W of the blocks and the matrix V in its place on the way back, as
    `weight_alignment[name]`; beside it ‖V‖/‖W‖ as `weight_ratio[name]`; and of each the mean over the matrices of
    a block, without a name.

    Undefined where a rule replaces no matrix, and where V or W is zero.
    """
    feedback = snapshot.context.feedback
    found = {} if feedback is None else feedback(snapshot)
    for block, unit in enumerate(snapshot.net.matrices()):
        pairs = {name: (found[name], w.detach()) for name, w in unit.items() if name in found}
        for metric, measure in (("weight_alignment", _cosine), ("weight_ratio", _ratio)):
            values = {name: measure(v, w) for name, (v, w) in pairs.items()}
            for name, value in values.items():
                yield _reading(f"{metric}[{name}]", block, value)
            mean = sum(values.values()) / len(values) if values else None
            yield _reading(metric, block, mean)


def _cosine(v: Tensor, w: Tensor) -> float:
    return cosines(v.reshape(1, -1), w.reshape(1, -1)).item()


def _ratio(v: Tensor, w: Tensor) -> float:
    return rms(v) / rms(w) if rms(w) > 0 else math.nan


def _reading(metric: str, block: int, value: float | None) -> Reading:
    """A reading of weights, with 0 samples."""
    if value is None or not math.isfinite(value):
        return undefined(metric, NO_MATRICES if value is None else ZERO, layer=block)
    return Reading(metric=metric, layer=block, value=value, samples=0)
