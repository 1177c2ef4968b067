"""What is read off one tensor: short vectors that stay on its device until the rows are written.

N samples (first axis), U units (last axis, channels of maps).  Every function takes detached tensors.
"""

from typing import cast

import torch
from torch import Tensor

CHUNK = 1 << 18  # entries of a temporary
ROWS = 64  # samples or tokens whose directions are compared
BLOCK = 4096  # columns of a temporary in float64


def readable(x: Tensor) -> str | None:
    """Why nothing can be read off this tensor, or None."""
    if type(x) not in (Tensor, torch.nn.Parameter):
        return f"a {type(x).__name__} is not read: its parts may lie elsewhere"
    if x.layout != torch.strided or x.is_nested:
        return "a sparse or nested tensor is not read"
    if x.is_complex():
        return "a complex tensor is not read"
    if x.numel() == 0:
        return "the tensor is empty"
    if x.is_meta:
        return "a tensor on the device meta has no values"
    return None


def by_sample(x: Tensor) -> Tensor:
    """At least two axes, the first of them samples."""
    return x if x.dim() > 1 else x.reshape(-1, 1)


def _others(x: Tensor) -> tuple[int, ...]:
    return tuple(range(1, x.dim()))


def _wide(x: Tensor) -> torch.dtype | None:
    """Sums of half-precision numbers are taken in single precision."""
    return None if x.dtype in (torch.float32, torch.float64) else torch.float32


def norms(x: Tensor) -> Tensor:
    """‖x_n‖ of each sample."""
    x = by_sample(x)
    return cast(Tensor, torch.linalg.vector_norm(x, dim=_others(x), dtype=_wide(x)))


def sums(x: Tensor) -> Tensor:
    """Σ x_n of each sample."""
    x = by_sample(x)
    return x.sum(_others(x), dtype=_wide(x))


def tops(x: Tensor) -> Tensor:
    """max x_n of each sample."""
    x = by_sample(x)
    return x.amax(_others(x))


def unit_bounds(x: Tensor, axis: int, *, never_negative: bool) -> tuple[Tensor, Tensor]:
    """Smallest and largest value of each unit over everything else."""
    axis = axis % x.dim()
    if axis == 1 and x.dim() > 2:  # maps: along the rows of memory first
        x = x.flatten(2)
        high = x.amax(2).amax(0)
        return (high if never_negative else x.amin(2).amin(0)), high
    rest = tuple(k for k in range(x.dim()) if k != axis)
    high = x.amax(rest)
    return (high if never_negative else x.amin(rest)), high


def at_bounds(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    """How many entries lie within 0.01 of a bound."""
    low, high = bounds
    return ((x <= low + 0.01) | (x >= high - 0.01)).sum().reshape(1).to(exact(x))


def against_input(x: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """‖out_n − x_n‖ and ⟨x_n, out_n⟩ of each sample; a few samples at a time, so that temporaries stay small."""
    x, out = by_sample(x), by_sample(out)
    many = max(1, CHUNK * x.shape[0] // x.numel())
    if many >= x.shape[0]:
        return _compared(x, out)
    starts = range(0, x.shape[0], many)
    parts = [_compared(x[start : start + many], out[start : start + many]) for start in starts]
    steps, dots = zip(*parts, strict=True)
    return torch.cat(steps), torch.cat(dots)


def _compared(x: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    if _wide(x) or _wide(out):
        x, out = x.float(), out.float()
    return norms(out - x), sums(x * out)


def exact(x: Tensor) -> torch.dtype:
    """Double precision, where the device has it."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def halves(grad: Tensor) -> Tensor:
    """⟨g₁, g₂⟩, ‖g₁‖², ‖g₂‖² of the gradients summed over the first and the second half of the samples.

    Of an odd number of samples the last one belongs to neither.
    """
    half = grad.shape[0] // 2
    first, second = (
        part.sum(0, dtype=_wide(grad)).flatten().to(exact(grad)) for part in (grad[:half], grad[half : 2 * half])
    )
    return torch.stack([first @ second, first @ first, second @ second])


def gram(x: Tensor, units: int) -> Tensor:
    """X Xᵀ in float64 of up to 64 rows: samples, or tokens where there are several units' rows to a sample."""
    if x.dim() > 2 and units % x.dim() == x.dim() - 1:
        x = x.flatten(0, -2)
        rows = x[:: max(1, x.shape[0] // ROWS)][:ROWS]
    else:
        rows = by_sample(x)[:ROWS].flatten(1)
    found = torch.zeros(rows.shape[0], rows.shape[0], dtype=exact(x), device=x.device)
    for start in range(0, rows.shape[1], BLOCK):
        block = rows[:, start : start + BLOCK].to(exact(x))
        found += block @ block.T
    return found
