"""What a watch records, computed without hooks from tensors that the forward pass hands out.  All in float64."""

import math
from typing import Any

import numpy as np
from torch import Tensor


def array(x: Tensor) -> np.ndarray[Any, Any]:
    return x.detach().double().numpy()


def of_output(out: Tensor) -> dict[str, float]:
    x = array(out)
    return {"out_rms": math.sqrt(np.mean(x**2)), "out_mean": float(np.mean(x)), "out_max": float(np.max(x))}


def dead_share(out: Tensor, axis: int) -> float:
    """One unit at a time."""
    units = np.moveaxis(array(out), axis, 0)
    return float(np.mean([not unit.any() for unit in units]))


def saturated_share(out: Tensor, low: float, high: float) -> float:
    flat = array(out).ravel()
    return sum(value <= low + 0.01 or value >= high - 0.01 for value in flat) / len(flat)


def grad_rms(grad: Tensor) -> float:
    return math.sqrt(np.mean(array(grad) ** 2))


def grad_noise(grad: Tensor) -> float:
    g = array(grad)
    half = len(g) // 2
    first, second = g[:half].sum(0).ravel(), g[half : 2 * half].sum(0).ravel()
    return 1 - float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))


def stream(x: Tensor, out: Tensor) -> dict[str, float]:
    steps, cosines = [], []
    for before, after in zip(array(x), array(out), strict=True):
        a, b = before.ravel(), after.ravel()
        steps.append(np.linalg.norm(b - a) / np.linalg.norm(a))
        if np.linalg.norm(b):
            cosines.append(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
    return {"stream_step": float(np.median(steps)), "stream_cosine": float(np.median(cosines))}


def directions(rows: np.ndarray[Any, Any]) -> dict[str, float]:
    singular = np.linalg.svd(rows, compute_uv=False)
    share = singular / singular.sum()
    entropy = -sum(p * math.log(p) for p in share if p > 0)
    unit = [row / np.linalg.norm(row) for row in rows if np.linalg.norm(row)]
    pairs = [a @ b for i, a in enumerate(unit) for j, b in enumerate(unit) if i < j]
    return {"effective_rank": math.exp(entropy), "sample_cosine": float(np.mean(pairs))}


def attention(q: Tensor, k: Tensor, *, causal: bool) -> dict[str, float]:
    """One head and one query at a time."""
    entropies, largest = [], -math.inf
    for queries, keys in zip(
        array(q)[:8].reshape(-1, *q.shape[2:]), array(k)[:8].reshape(-1, *k.shape[2:]), strict=True
    ):
        for place, query in enumerate(queries):
            seen = keys[: place + 1] if causal else keys
            logits = seen @ query / math.sqrt(len(query))
            largest = max(largest, float(logits.max()))
            weights = np.exp(logits - logits.max())
            weights /= weights.sum()
            entropies.append(-sum(w * math.log(w) for w in weights if w > 0))
    return {"attention_entropy": float(np.mean(entropies)), "attention_max_logit": largest}
