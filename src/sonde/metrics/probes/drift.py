"""How far each parameter tensor has moved."""

from collections.abc import Iterator

from sonde.metrics.probes.over_samples import rms
from sonde.metrics.probes.snapshot import Snapshot
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
            yield Reading(metric=metric, value=value, samples=0)  # no sample has a part in it
        else:
            yield undefined(metric, "the initial tensor is zero")
