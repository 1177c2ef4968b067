"""Per-sample norms and their median: the one place where a norm over samples is taken."""

import torch
from torch import Tensor


def sample_norms(h_Nd: Tensor) -> Tensor:
    """‖h‖₂ of each sample, in float64; for N×T×d tokens, of the first (CLS) token."""
    if h_Nd.ndim == 3:
        h_Nd = h_Nd[:, 0]
    if h_Nd.ndim != 2:
        raise ValueError(
            f"expected samples × width or samples × tokens × width, got shape {tuple(h_Nd.shape)}"
        )
    norms_N: Tensor = torch.linalg.vector_norm(h_Nd.double(), dim=-1)
    return norms_N


def median(values_N: Tensor) -> float:
    """The middle value, or the mean of the two middle values."""
    ordered = values_N.sort().values
    n = len(ordered)
    return float((ordered[(n - 1) // 2] + ordered[n // 2]) / 2)
