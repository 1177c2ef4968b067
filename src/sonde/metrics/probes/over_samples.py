"""Norms and cosines of samples, and their medians and means as readings.  N samples, d width.

The one place where a norm of a sample is taken: every vector is divided by its largest entry before it is squared, so
that no square under- or overflows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sonde.metrics.rows import Reading, undefined


def sample_norms(h_Nd: Tensor) -> Tensor:
    """‖h‖₂ of each sample, in float64."""
    h_Nd = _vectors(h_Nd)
    largest_N = h_Nd.abs().amax(-1)
    norms_N = largest_N * torch.linalg.vector_norm(h_Nd / largest_N[:, None], dim=-1)
    return torch.where((largest_N > 0) & largest_N.isfinite(), norms_N, largest_N)


@dataclass(frozen=True)
class VectorsWithNorms:
    """Vectors divided by their largest entry, and the norms of what is left; NaN of a vector that is zero."""

    vectors_Nd: Tensor
    norms_N: Tensor


def with_norms(v_Nd: Tensor) -> VectorsWithNorms:
    """In float64; compared with many others, a vector is scaled once."""
    v_Nd = _vectors(v_Nd)
    v_Nd = v_Nd / v_Nd.abs().amax(-1, keepdim=True)
    return VectorsWithNorms(v_Nd, torch.linalg.vector_norm(v_Nd, dim=-1))


def cosines(a_Nd: Tensor | VectorsWithNorms, b_Nd: Tensor | VectorsWithNorms) -> Tensor:
    """cos(a, b) of each sample, never clamped; NaN where a vector is zero or not finite."""
    a, b = (v if isinstance(v, VectorsWithNorms) else with_norms(v) for v in (a_Nd, b_Nd))
    cosines_N: Tensor = torch.linalg.vecdot(a.vectors_Nd, b.vectors_Nd) / (a.norms_N * b.norms_N)
    return cosines_N


def _vectors(h_Nd: Tensor) -> Tensor:
    if h_Nd.ndim != 2:
        raise ValueError(f"expected samples × width, as a reader gives, got shape {tuple(h_Nd.shape)}")
    return h_Nd.double()


def rms(values: Tensor) -> float:
    """√(mean of the squares) of all entries; NaN of none."""
    if values.numel() == 0:
        return float("nan")
    largest = values.abs().max()
    if not (largest > 0 and largest.isfinite()):
        return float(largest)
    return float(largest * (values / largest).square().mean().sqrt())


def median(values_N: Tensor) -> float:
    """The middle value, or the mean of the two middle values."""
    ordered = values_N.sort().values
    n = len(ordered)
    return float(ordered[(n - 1) // 2] + (ordered[n // 2] - ordered[(n - 1) // 2]) / 2)


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
