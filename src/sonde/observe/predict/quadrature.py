"""Expectations of functions of Gaussian numbers.

One variable: Gauss–Legendre in pieces between the places where common activations have kinks, so that piecewise smooth
functions are integrated to about 1e-12.  Two correlated variables: E[f(u) f(v)] = Σ_n a_n² ρ^n, with a_n the
coefficients of f in normalised Hermite polynomials (Mehler's formula).
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Pointwise = Callable[[Tensor], Tensor]

_KINKS = (-3.0, -1.0, 0.0, 1.0, 3.0, 6.0)
_REACH = 8.5  # standard deviations; what lies outside has a probability of 2e-17
_NODES, _LONGEST = 20, 2.0
_ORDERS = 48
_IMPROBABLE = 1e-6
_STEEPEST = 40.0  # variance of scores; above it one score takes everything
_SAME = 1e-9  # a correlation that is this close to 1 is 1


@functools.cache
def _legendre() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.polynomial.legendre.leggauss(_NODES)


@functools.lru_cache(64)
def nodes(mean: float, std: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Places z of a standard Gaussian, and their weights, for functions of mean + std z."""
    kinks = [(kink - mean) / std for kink in _KINKS if abs(kink - mean) < _REACH * std]
    ends = sorted({-_REACH, _REACH, *kinks, *np.arange(-_REACH, _REACH, _LONGEST)})
    places, weights = _legendre()
    low, high = np.array(ends[:-1])[:, None], np.array(ends[1:])[:, None]
    z = ((high + low) / 2 + (high - low) / 2 * places).ravel()
    w = ((high - low) / 2 * weights).ravel() * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return z, w


def value_and_slope(function: Pointwise, x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """f and f' at these places, in float64."""
    with torch.enable_grad():
        at = torch.tensor(x, requires_grad=True)
        value = function(at)
        slope = torch.zeros_like(at)
        if value.requires_grad:
            slope = torch.autograd.grad(value.sum(), at)[0]
    return value.detach().numpy(), slope.numpy()


@functools.lru_cache(64)
def _hermite(key: tuple[float, float]) -> NDArray[np.float64]:
    """Normalised Hermite polynomials 0 … _ORDERS at the nodes."""
    z, _ = nodes(*key)
    found = np.empty((_ORDERS + 1, z.size))
    found[0], found[1] = 1.0, z
    for n in range(1, _ORDERS):
        found[n + 1] = (z * found[n] - math.sqrt(n) * found[n - 1]) / math.sqrt(n + 1)
    return found


class Expectation:
    """E f(x), E f(x)^k and E f(x) f(x') for Gaussian x, x' of this mean and standard deviation.

    Where f is not defined (`rsqrt` below 0) it counts as 0, if that is improbable; else everything is NaN.
    """

    def __init__(self, values: NDArray[np.float64], mean: float, std: float) -> None:
        _, w = nodes(mean, std)
        missing = ~np.isfinite(values)
        if missing.any() and w[missing].sum() < _IMPROBABLE:
            values = np.where(missing, 0.0, values)
        self.mean, self.square, self.fourth = (float(w @ values**k) for k in (1, 2, 4))
        self._coefficients = (_hermite((mean, std)) * w) @ values

    def product(self, rho: NDArray[np.float64]) -> NDArray[np.float64]:
        """E f(u) f(v) at these correlations; orders above the highest count as the highest."""
        squares = self._coefficients**2
        rest = max(self.square - squares.sum(), 0.0)
        orders = np.arange(_ORDERS + 1)
        series = (squares * np.clip(rho, -1, 1)[..., None] ** orders).sum(-1)
        found = np.asarray(series + rest * np.clip(rho, 0, 1) ** (_ORDERS + 1))
        found[rho > 1 - _SAME] = self.square
        return found


_LOG_TIMES = np.linspace(-40.0, 40.0, 481)


def participation(variance: float, counts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """E Σ_j A_j² of a softmax over n independent Gaussian scores of one variance, for each n; and what it passes back.

    Exact: 1/S^k = ∫ t^{k−1} exp(−tS) dt / Γ(k), so E Σ A_j^k is n/Γ(k) times ∫ t^{k−1} E[e^{ks − t e^s}]
    E[e^{−t e^s}]^{n−1} dt.
    An independent gradient of variance 1 at the weights has at all scores Σ A² − 2 Σ A³ + (Σ A²)² together.
    """
    if not variance > 0:
        return np.asarray(1 / counts), np.asarray((1 - 1 / counts) / counts)
    z, w = nodes(0.0, 1.0)
    score = math.sqrt(min(variance, _STEEPEST)) * z
    size, times = np.exp(score - score.max() / 2), np.exp(_LOG_TIMES)
    passed = np.exp(-times[:, None] * size)
    others, step = passed @ w, _LOG_TIMES[1] - _LOG_TIMES[0]
    own = {k: times**k * (passed * size**k @ w) for k in (2, 3, 4)}  # t from dt = t d log t
    found = []
    for n in counts:
        rest = step * n * others ** (n - 1)
        second, third, fourth = (float(own[k] @ rest) / math.gamma(k) for k in own)
        pairs = (n - 1) * float(own[2] ** 2 @ (step * n * others ** max(n - 2, 0))) / math.gamma(4)
        found.append((second, second - 2 * third + fourth + pairs))
    return np.array([a for a, _ in found]), np.array([max(b, 0.0) for _, b in found])


def critical_weight_std(function: Pointwise, bias_std: float = 0.0) -> float:
    """The σ_w at which a wide network f(Wh + b) of any depth keeps its gradient: σ_w² E[f'(√q z)²] = 1.

    q is the fixed point q = σ_w² E[f(√q z)²] + σ_b² (Schoenholz et al. 2017, arXiv:1611.01232).  W has entries
    N(0, σ_w²/fan_in).  For σ_b = 0 and tanh q is 0, and σ_w is 1.
    """
    low, high = 0.0, 1e4
    for _ in range(200):
        q = (low + high) / 2
        std = math.sqrt(q)
        values, slopes = value_and_slope(function, std * nodes(0.0, std)[0]) if q > 0 else (np.zeros(1), np.ones(1))
        square, slope = (Expectation(one, 0.0, std).square for one in (values, slopes)) if q > 0 else (0.0, 1.0)
        if square / slope + bias_std**2 > q:
            low = q
        else:
            high = q
    return math.sqrt(1 / slope)
