"""Norms, cosines and medians over samples: the one place where a norm of a sample is taken.  N samples, d width.

Every vector is divided by its largest entry before it is squared, so that no square under- or overflows.
"""

import torch
from torch import Tensor


def vectors(h: Tensor) -> Tensor:
    """The vector that is read of each sample, N×d in float64; of N×T×d tokens, the first (CLS)."""
    if h.ndim == 3:
        h = h[:, 0]
    if h.ndim != 2:
        raise ValueError(f"expected samples × width or samples × tokens × width, got shape {tuple(h.shape)}")
    return h.double()


def sample_norms(h: Tensor) -> Tensor:
    """‖h‖₂ of each sample."""
    h_Nd = vectors(h)
    largest_N = h_Nd.abs().amax(-1)
    norms_N = largest_N * torch.linalg.vector_norm(h_Nd / largest_N[:, None], dim=-1)
    return torch.where((largest_N > 0) & largest_N.isfinite(), norms_N, largest_N)


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """cos(a, b) of each sample, never clamped; NaN where a vector is zero or not finite."""
    a_Nd, b_Nd = vectors(a), vectors(b)
    a_Nd = a_Nd / a_Nd.abs().amax(-1, keepdim=True)
    b_Nd = b_Nd / b_Nd.abs().amax(-1, keepdim=True)
    lengths_N = torch.linalg.vector_norm(a_Nd, dim=-1) * torch.linalg.vector_norm(b_Nd, dim=-1)
    cosines_N: Tensor = torch.linalg.vecdot(a_Nd, b_Nd) / lengths_N
    return cosines_N


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
