"""Theory of the identity task: its lowest loss, and signal and gradient of wide networks at initialisation.

Linear output z_{l+1} = W_l h_l with W ~ N(0, 2α²/d).  Plain: h_{l+1} = ReLU(z_{l+1}); residual:
h_{l+1} = h_l + ReLU(z_{l+1}).  q_l is the mean of h_l² over units, m_l the mean of h_l.  What is said of random weights
holds for wide networks at initialisation; weights, ReLU and sums change moments as they do in `sonde predict`.
"""

import math

import numpy as np

from sonde.analysis.moments import Elementwise, Moments

INPUT_SECOND_MOMENT = 1 / 3
"""Of an input from U(−1, 1); also the loss of predicting zero when the target is the input."""

INPUT_STD = math.sqrt(INPUT_SECOND_MOMENT)


def lowest_loss(model: str, task: str, output: str = "relu") -> float | None:
    """The lowest expected loss that any weights of the network reach on the task; None where it is not known.

    A plain network that ends in a ReLU has no negative outputs.  Half of the identity's targets are negative, and the
    best output for them is 0: E min(x, 0)² = 1/6 is left, at any depth.  With a linear last layer, or with "+x", the
    identity is among the functions of the network.
    """
    if task != "identity" or model not in ("plain_mlp", "res_mlp"):
        return None
    return INPUT_SECOND_MOMENT / 2 if model == "plain_mlp" and output == "relu" else 0.0


_RELU = Elementwise(lambda z: (np.maximum(z, 0.0), np.heaviside(z, 0.5)))
_LINEAR = Elementwise(lambda z: (z, np.ones_like(z)))


def _signals(residual: bool, alpha: float, depth: int, q0: float, linear_output: bool) -> list[tuple[Moments, ...]]:
    """Moments of (h, z, branch) in every layer, and at last of h_L, of units along one axis."""
    weight = Moments(0.0, np.array([[2 * alpha**2, 0.0], [0.0, 0.0]]))
    h, found = Moments(0.0, np.array([q0, 0.0])), []
    for layer in range(depth):
        z = h.mixed(weight, "i,io->o", {"i": 1, "o": 1})
        branch = _of(layer, depth, linear_output).forward([z])
        found.append((h, z, branch))
        h = h.plus(branch) if residual else branch
    return [*found, (h,)]


def _of(layer: int, depth: int, linear_output: bool) -> Elementwise:
    return _LINEAR if linear_output and layer == depth - 1 else _RELU


def moments(
    residual: bool, alpha: float, depth: int, q0: float = INPUT_SECOND_MOMENT, *, linear_output: bool = False
) -> list[tuple[float, float]]:
    """(q_l, m_l) of layers 0 … depth, of inputs without a mean.

    Plain: q_{l+1} = α² q_l.  Residual: q_{l+1} = (1 + α²) q_l + 2α m_l √(q_l/π) and
    m_{l+1} = m_l + α √(q_l/π): the ReLU branch has a positive mean, so the stream gains one too and
    grows faster than 1 + α² per layer.  A linear last layer has no mean, and twice the second moment.
    """
    return [(h.square, h.mean) for h, *_ in _signals(residual, alpha, depth, q0, linear_output)]


def second_moments(residual: bool, alpha: float, depth: int, q0: float = INPUT_SECOND_MOMENT) -> list[float]:
    """q_0 … q_depth."""
    return [q for q, _ in moments(residual, alpha, depth, q0)]


def preactivation_stds(residual: bool, alpha: float, depth: int) -> list[float]:
    """Standard deviation α √(2 q_l) of the linear output of layers 1 … depth."""
    return [alpha * math.sqrt(2 * q) for q in second_moments(residual, alpha, depth)[:-1]]


def independent_factor(residual: bool, alpha: float) -> float:
    """The factor of one layer for a gradient that is independent of the stream: α plain, √(1 + α²) residual."""
    return math.sqrt(1 + alpha**2) if residual else alpha


def backward_norms(residual: bool, alpha: float, depth: int, *, linear_output: bool = False) -> list[float]:
    """Root mean square over units of ∂ℓ/∂z_l, layers 1 … depth, of the identity's own loss ℓ = ½‖h_L − h_0‖².

    This gradient is not independent of the stream, for it contains h_L: a residual network gets more of it back than
    `independent_factor` says.  Write the gradient at h_{l+1} as A h_{l+1} + C h_0 + n, with n independent of h_l, and
    let μ and ν be the means of n and n².  Given z = W h_l, W is z h_lᵀ/‖h_l‖² plus an independent part.  With s = 1
    (residual) or 0 (plain), b = E ReLU(z) and D the mean square of the gradient at z:

        D  = ½ E(sA h_l + C h_0 + n)² + 2Ab(sA m + μ) + A² α² q
        A' = s² A + ((sA m + μ) b + A α² q)/q      C' = sC
        μ' = s(μ + Ab)                             ν' = s²(ν + 2Aμb + A² α² q) + 2α² D

    These are those of ReLU; a linear last layer has no mask, E z = 0 and E z² = 2α² q.
    """
    q0, s = INPUT_SECOND_MOMENT, float(residual)
    up = _signals(residual, alpha, depth, q0, linear_output)
    a, c, mean, square = 1.0, -1.0, 0.0, 0.0
    found: list[float] = []
    for layer in reversed(range(depth)):
        h, z, branch = up[layer]
        passed = _of(layer, depth, linear_output).backward(np.array([1.0, 0.0]), [z])[0].flat[0]
        q, m, b = h.square, h.mean, branch.mean
        rest_mean = s * a * m + mean
        rest = (s * a) ** 2 * q + 2 * s * a * c * s**layer * q0 + c**2 * q0 + 2 * s * a * m * mean + square
        at_z = passed * rest + 2 * a * b * rest_mean + a**2 * branch.square
        found.append(math.sqrt(at_z))
        square = s**2 * (square + 2 * a * mean * b + a**2 * branch.square) + 2 * alpha**2 * at_z
        a, c, mean = s**2 * a + (rest_mean * b + a * branch.square) / q, s * c, s * (mean + a * b)
    return found[::-1]
