"""A probe from outside the package."""

from sonde.metrics.rows import Reading


def sparsity(snapshot):
    """The part of a state's numbers that are below a hundredth of its largest."""
    for layer, h in enumerate(snapshot.states):
        small = (h.abs() < 0.01 * h.abs().amax()).double().mean().item()
        yield Reading(metric="sparsity", layer=layer, value=small, samples=len(h))
    yield Reading(metric="widest_state", value=float(max(h.shape[-1] for h in snapshot.states)), samples=1)
