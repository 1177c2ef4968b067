"""What is computed from tensors, for a snapshot of a trained network and for a watched step alike.

N samples (first axis), d width, U units (last axis; channels of maps).  The functions of a watched step take detached
tensors, compute in their dtype (half precision in float32), and return short vectors that stay on the device.  A
snapshot computes in float64, and divides a vector by its largest entry before it is squared, so that no square under-
or overflows: `sample_norms`, `rms` and `cosines` are `norms`, `root_mean_square` and `cosine` of such vectors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sonde.metrics.rows import Reading, undefined

Vector = NDArray[np.float64]
_Numbers = TypeVar("_Numbers", Tensor, Vector)

_CHUNK = 1 << 18  # entries of a temporary
_ROWS = 64  # samples or tokens whose directions are compared
_COLUMNS = 4096  # of a temporary in float64
_MANY = 1 << 20  # entries whose tails are computed
_MASSIVE = 100.0  # times the median of absolute values
_OTHERS = [tuple(range(1, axes)) for axes in range(65)]  # number of axes → all but the first
FOREACH = 1 << 16  # entries; the squares of more are not added up in one go in single precision


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


# Norms, sums and maxima of each sample


def norms(x: Tensor) -> Tensor:
    """‖x_n‖ of each sample."""
    x = _by_sample(x)
    found: Tensor = torch.linalg.vector_norm(x, dim=_OTHERS[x.dim()], dtype=_wide(x))
    return found


def sums(x: Tensor) -> Tensor:
    """Σ x_n of each sample."""
    x = _by_sample(x)
    return x.sum(_OTHERS[x.dim()], dtype=_wide(x))


def maxima(x: Tensor) -> Tensor:
    """max x_n of each sample."""
    x = _by_sample(x)
    return x.amax(_OTHERS[x.dim()])


def sample_norms(h_Nd: Tensor) -> Tensor:
    """‖h‖₂ of each sample, in float64, without under- or overflow."""
    h_Nd = _vectors(h_Nd)
    largest_N = h_Nd.abs().amax(-1)
    norms_N = largest_N * norms(h_Nd / largest_N[:, None])
    return torch.where((largest_N > 0) & largest_N.isfinite(), norms_N, largest_N)


def tensor_norms(tensors: Sequence[Tensor]) -> Tensor:
    """‖t‖ of each tensor, as one vector on the device of the first."""
    if not tensors:
        return torch.zeros(0)
    device = tensors[0].device
    small = [t for t in tensors if t.numel() <= FOREACH]
    quick = iter(torch._foreach_norm(small)) if small else iter(())
    found = [next(quick) if t.numel() <= FOREACH else _norm_in_parts(t) for t in tensors]
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in found) else torch.float32
    if all(norm.dtype == dtype and norm.device == device for norm in found):
        return torch.stack(found)
    return torch.stack([norm.to(device=device, dtype=dtype) for norm in found])


def _norm_in_parts(tensor: Tensor) -> Tensor:
    if tensor.dim() < 2:
        whole = tensor.numel() // 1024 * 1024
        parts = norms(tensor[:whole].reshape(-1, 1024)), norms(tensor[whole:])
        return cast(Tensor, torch.linalg.vector_norm(torch.cat(parts)))
    return cast(Tensor, torch.linalg.vector_norm(norms(tensor)))


def exact_dtype(x: Tensor) -> torch.dtype:
    """Double precision, where the device has it."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def _by_sample(x: Tensor) -> Tensor:
    """At least two axes, the first of them samples."""
    return x if x.dim() > 1 else x.reshape(-1, 1)


def _wide(x: Tensor) -> torch.dtype | None:
    """Sums of half-precision numbers are taken in single precision."""
    return None if x.dtype in (torch.float32, torch.float64) else torch.float32


def _vectors(h_Nd: Tensor) -> Tensor:
    if h_Nd.ndim != 2:
        raise ValueError(f"expected samples × width, as pooling gives, got shape {tuple(h_Nd.shape)}")
    return h_Nd.double()


# Root mean squares, cosines, correlations


def root_mean_square(x: Tensor) -> Tensor:
    """√(Σx²/n) over all entries, on the device of x."""
    return x.square().mean().sqrt()


def rms(values: Tensor) -> float:
    """√(Σx²/n) over all entries, without under- or overflow; NaN of none."""
    if values.numel() == 0:
        return float("nan")
    largest = values.abs().max()
    if not (largest > 0 and largest.isfinite()):
        return float(largest)
    return float(largest * root_mean_square(values / largest))


def rms_of_sum(squares: float, entries: int) -> float:
    """√(Σx²/n), from the sum of squares; NaN of a sum that is not a number."""
    mean = squares / entries
    return math.sqrt(mean) if mean >= 0 else math.nan


def cosine_of(dots: _Numbers, a: _Numbers, b: _Numbers) -> _Numbers:
    """⟨a, b⟩/(‖a‖‖b‖), from products and norms; never clamped."""
    return dots / (a * b)


@dataclass(frozen=True)
class VectorsWithNorms:
    """Vectors divided by their largest entry, and the norms of the results; NaN of a vector that is zero."""

    vectors_Nd: Tensor
    norms_N: Tensor


def with_norms(v_Nd: Tensor) -> VectorsWithNorms:
    """Scale vectors once, in float64, to compare them with many others."""
    v_Nd = _vectors(v_Nd)
    v_Nd = v_Nd / v_Nd.abs().amax(-1, keepdim=True)
    return VectorsWithNorms(v_Nd, norms(v_Nd))


def cosines(a_Nd: Tensor | VectorsWithNorms, b_Nd: Tensor | VectorsWithNorms) -> Tensor:
    """cos(a, b) of each sample; NaN where a vector is zero or not finite."""
    a, b = (v if isinstance(v, VectorsWithNorms) else with_norms(v) for v in (a_Nd, b_Nd))
    dots_N: Tensor = torch.linalg.vecdot(a.vectors_Nd, b.vectors_Nd)
    return cosine_of(dots_N, a.norms_N, b.norms_N)


def pearson(x_JM: Tensor, y_M: Tensor) -> list[float]:
    """The correlation of each row with y; NaN where one side has no spread beyond rounding."""
    x_JM, y_M = _deviations(x_JM), _deviations(y_M[None])[0]
    found: list[float] = ((x_JM * y_M).mean(-1)).tolist()
    return found


def _deviations(values_JM: Tensor) -> Tensor:
    """Each row less its mean, over its standard deviation; NaN where that is rounding."""
    scaled_JM = values_JM / values_JM.abs().amax(-1, keepdim=True)
    centred_JM = scaled_JM - scaled_JM.mean(-1, keepdim=True)
    size_J1 = centred_JM.square().mean(-1, keepdim=True).sqrt()
    return centred_JM / torch.where(size_J1 > 4 * torch.finfo(size_J1.dtype).eps, size_J1, torch.nan)


# Output against input, units, directions


def against_input(x: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """‖out_n − x_n‖ and ⟨x_n, out_n⟩ of each sample; a few samples at a time, so that temporaries stay small."""
    x, out = _by_sample(x), _by_sample(out)
    many = max(1, _CHUNK * x.shape[0] // x.numel())
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
    """How many entries lie within 0.01 of a bound, as a vector of one."""
    low, high = bounds
    return ((x <= low + 0.01) | (x >= high - 0.01)).sum().reshape(1).to(exact_dtype(x))


def halves(grad: Tensor) -> Tensor:
    """⟨g₁, g₂⟩, ‖g₁‖², ‖g₂‖² of the gradients summed over the first and the second half of the samples.

    Of an odd number of samples the last one belongs to neither.
    """
    half = grad.shape[0] // 2
    first, second = (
        part.sum(0, dtype=_wide(grad)).flatten().to(exact_dtype(grad)) for part in (grad[:half], grad[half : 2 * half])
    )
    return torch.stack([first @ second, first @ first, second @ second])


def gram(x: Tensor, units: int) -> Tensor:
    """X Xᵀ in float64 of up to 64 rows: samples, or tokens where a sample has several."""
    if x.dim() > 2 and units % x.dim() == x.dim() - 1:
        x = x.flatten(0, -2)
        rows = x[:: max(1, x.shape[0] // _ROWS)][:_ROWS]
    else:
        rows = _by_sample(x)[:_ROWS].flatten(1)
    found = torch.zeros(rows.shape[0], rows.shape[0], dtype=exact_dtype(x), device=x.device)
    for start in range(0, rows.shape[1], _COLUMNS):
        block = rows[:, start : start + _COLUMNS].to(exact_dtype(x))
        found += block @ block.T
    return found


def tails(x: Tensor) -> Tensor:
    """Share of entries above 100 times the median of absolute values, and kurtosis E(x − μ)⁴/σ⁴; NaN without spread.

    Of more than a million entries, every n-th is taken.
    """
    y = _few(x).to(exact_dtype(x))
    size = y.abs()
    centred = (y - y.mean()).square()
    massive = (size > _MASSIVE * _middle(size)).to(y.dtype).mean()
    return torch.stack([massive, centred.square().mean() / centred.mean().square()])


def moment_ratio(first: Tensor, second: Tensor) -> Tensor:
    """The median of |m|/√v over entries with v > 0, of Adam's moments; NaN where there is none."""
    m, v = (_few(moment).to(exact_dtype(moment)) for moment in (first, second))
    return _middle((m.abs() / v.sqrt()).masked_fill(v <= 0, math.nan))


def _few(x: Tensor) -> Tensor:
    flat = x.detach().flatten()
    return flat[:: 1 + flat.numel() // _MANY] if flat.numel() > _MANY else flat


def _middle(values: Tensor) -> Tensor:
    """The median of the entries that are not NaN: the middle value, or the mean of the two middle values."""
    return values.nanquantile(0.5)


def router_load(chosen: Tensor, experts: int) -> Tensor:
    """How often each expert was chosen, relative to the mean over experts."""
    counts = torch.bincount(chosen.flatten(), minlength=experts).to(exact_dtype(chosen))
    return counts * experts / chosen.numel()


def entropy(probabilities: Tensor) -> Tensor:
    """Entropy over the last axis in nats, averaged over everything else, as a vector of one."""
    each: Tensor = torch.special.entr(probabilities.to(exact_dtype(probabilities))).sum(-1)
    return each.mean().reshape(1)


def effective_rank(gram_NN: Vector) -> float:
    """exp(entropy of the normalised singular values) of X, from X Xᵀ; NaN of zero.  Roy & Vetterli (2007)."""
    squares = np.linalg.eigvalsh(gram_NN)
    noise = len(gram_NN) * np.finfo(np.float64).eps * max(squares[-1], 0)
    singular = np.sqrt(squares[squares > noise])
    share = singular / singular.sum()
    return float(np.exp(-np.sum(share * np.log(share)))) if singular.size else math.nan


def mean_cosine(gram_NN: Vector) -> tuple[float, int]:
    """Mean cosine over pairs of rows of X that are not zero, from X Xᵀ, and how many rows these are; NaN below two."""
    lengths = np.sqrt(np.diag(gram_NN))
    there = lengths > 0
    count = int(there.sum())
    if count < 2:
        return math.nan, count
    found = gram_NN[np.ix_(there, there)] / np.outer(lengths[there], lengths[there])
    return float((found.sum() - np.trace(found)) / (count * (count - 1))), count


# Over samples, as readings


def sample_median(values_N: Tensor) -> float:
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
    return Reading(metric=metric, layer=layer, value=sample_median(values_N), samples=n)


def median_of_defined(metric: str, values_N: Tensor, layer: int | None, otherwise: str) -> Reading:
    """The median over the samples that have a value (NaN is none); undefined, with a reason, where none has."""
    defined = values_N[~values_N.isnan()]
    if not len(defined):
        return undefined(metric, otherwise, layer=layer)
    return Reading(metric=metric, layer=layer, value=sample_median(defined), samples=len(defined))


def mean_of_defined(metric: str, values_N: Tensor, layer: int | None, otherwise: str) -> Reading:
    """The mean over the samples that have a value (NaN is none); undefined, with a reason, where none has."""
    defined = values_N[~values_N.isnan()]
    if not len(defined):
        return undefined(metric, otherwise, layer=layer)
    return Reading(metric=metric, layer=layer, value=torch.mean(defined).item(), samples=len(defined))
