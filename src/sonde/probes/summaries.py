"""From one value a sample to a reading.  N samples."""

import torch
from torch import Tensor

from sonde.probes.norms import median
from sonde.rows import Reading, undefined


def median_of_all(metric: str, values_N: Tensor, layer: int | None = None) -> Reading:
    """The median, which exists only if every sample's value is finite."""
    finite, n = int(values_N.isfinite().sum()), len(values_N)
    if finite < n:
        reason = f"not finite for {n - finite} of {n} samples"
        return undefined(metric, reason, layer=layer, samples=finite)
    return Reading(metric=metric, layer=layer, value=median(values_N), samples=n)


def median_of_defined(metric: str, values_N: Tensor, layer: int | None, otherwise: str) -> Reading:
    """The median over the samples that have a value (NaN is none); undefined, with a reason, where none has."""
    defined = values_N[~values_N.isnan()]
    if not len(defined):
        return undefined(metric, otherwise, layer=layer)
    return Reading(metric=metric, layer=layer, value=median(defined), samples=len(defined))


def mean_of_defined(metric: str, values_N: Tensor, layer: int | None, otherwise: str) -> Reading:
    """The mean over the samples that have a value (NaN is none); undefined, with a reason, where none has."""
    defined = values_N[~values_N.isnan()]
    if not len(defined):
        return undefined(metric, otherwise, layer=layer)
    return Reading(metric=metric, layer=layer, value=torch.mean(defined).item(), samples=len(defined))
