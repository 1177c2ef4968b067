"""The layers' linear outputs (pre-activations), over batch and units."""

from collections.abc import Iterator

from sonde.probes.snapshot import Snapshot
from sonde.rows import Reading, undefined

NO_LINEAR = "the block runs no linear map and no convolution"


def activation_mean(snapshot: Snapshot) -> Iterator[Reading]:
    """Mean of the linear output, layers 1 … L."""
    for layer, z in enumerate(snapshot.preactivations, start=1):
        if z is None:
            yield undefined("activation_mean", NO_LINEAR, layer=layer)
        else:
            yield Reading(
                metric="activation_mean", layer=layer, value=z.mean().item(), samples=snapshot.samples
            )


def activation_std(snapshot: Snapshot) -> Iterator[Reading]:
    """Sample standard deviation of the linear output, layers 1 … L."""
    for layer, z in enumerate(snapshot.preactivations, start=1):
        if z is None:
            yield undefined("activation_std", NO_LINEAR, layer=layer)
        elif z.numel() < 2:
            yield undefined(
                "activation_std", "one value has no spread", layer=layer, samples=snapshot.samples
            )
        else:
            yield Reading(
                metric="activation_std", layer=layer, value=z.std().item(), samples=snapshot.samples
            )
