"""How the matrices that credit goes back through compare with the weights."""

import math
from collections.abc import Iterator

from sonde.probes.over_samples import cosines, rms
from sonde.probes.snapshot import Snapshot
from sonde.rows import Reading, undefined

NO_MATRICES = "the rule replaces no weight matrix on the way back"


def weight_alignment(snapshot: Snapshot) -> Iterator[Reading]:
    """cos(V, W) of every weight matrix W of the blocks and the matrix V in its place on the way back, as
    `weight_alignment[name]` at the layer of its block; beside it ‖V‖/‖W‖ as `weight_ratio[name]`.

    Undefined for rules that replace no matrix, and where V or W is zero.
    """
    feedback = snapshot.context.feedback
    found = {} if feedback is None else feedback(snapshot)
    if not found:
        yield undefined("weight_alignment", NO_MATRICES)
        yield undefined("weight_ratio", NO_MATRICES)
    for layer, unit in enumerate(snapshot.net.matrices()):
        for name in [name for name in unit if name in found]:
            w, v = unit[name].detach(), found[name]
            cosine = cosines(v.reshape(1, -1), w.reshape(1, -1)).item()
            readings = {
                "weight_alignment": cosine,
                "weight_ratio": rms(v) / rms(w) if rms(w) > 0 else math.nan,
            }
            for metric, value in readings.items():
                if math.isfinite(value):
                    yield Reading(metric=f"{metric}[{name}]", layer=layer, value=value, samples=0)
                else:
                    yield undefined(
                        f"{metric}[{name}]", "one of the matrices is zero or not finite", layer=layer
                    )
