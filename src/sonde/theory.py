"""What random weights alone do to signal and gradient: wide networks, at initialisation.

Linear output z_{l+1} = W_l h_l with W ~ N(0, 2α²/d).  Plain: h_{l+1} = ReLU(z_{l+1}); residual:
h_{l+1} = h_l + ReLU(z_{l+1}).  q_l is the mean of h_l² over units, m_l the mean of h_l.
"""

import math

INPUT_SECOND_MOMENT = 1 / 3
"""Of an input from U(−1, 1); also the loss of predicting zero when the target is the input."""

INPUT_STD = math.sqrt(INPUT_SECOND_MOMENT)


def second_moments(
    residual: bool, alpha: float, depth: int, q0: float = INPUT_SECOND_MOMENT, m0: float = 0.0
) -> list[float]:
    """q_0 … q_depth.

    Plain: q_{l+1} = α² q_l.  Residual: q_{l+1} = (1 + α²) q_l + 2α m_l √(q_l/π) and
    m_{l+1} = m_l + α √(q_l/π): the ReLU branch has a positive mean, so the stream gains one too and
    grows faster than 1 + α² per layer.
    """
    q, m = q0, m0
    moments = [q]
    for _ in range(depth):
        branch_mean = alpha * math.sqrt(q / math.pi)
        q, m = (
            ((1 + alpha**2) * q + 2 * m * branch_mean, m + branch_mean)
            if residual
            else (alpha**2 * q, branch_mean)
        )
        moments.append(q)
    return moments


def preactivation_stds(
    residual: bool, alpha: float, depth: int, q0: float = INPUT_SECOND_MOMENT, m0: float = 0.0
) -> list[float]:
    """Standard deviation α √(2 q_l) of the linear output of layers 1 … depth."""
    return [alpha * math.sqrt(2 * q) for q in second_moments(residual, alpha, depth, q0, m0)[:-1]]


def backward_factor(residual: bool, alpha: float) -> float:
    """What one layer multiplies the gradient norm by on its way back: α plain, √(1 + α²) residual."""
    return math.sqrt(1 + alpha**2) if residual else alpha
