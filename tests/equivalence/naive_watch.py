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


def tails(out: Tensor) -> dict[str, float]:
    """One entry at a time."""
    flat = array(out).ravel()
    limit = 100 * float(np.median(np.abs(flat)))
    mean = math.fsum(flat) / len(flat)
    apart = [value - mean for value in flat]
    variance, fourth = (math.fsum(value**power for value in apart) / len(flat) for power in (2, 4))
    massive = [value for value in flat if abs(value) > limit]
    return {"massive_share": len(massive) / len(flat), "out_kurtosis": fourth / variance**2}


def adam_ratio(gradients: list[Tensor], beta1: float = 0.9, beta2: float = 0.999) -> float:
    """From the gradients of all steps so far, one entry at a time; entries that never had one are left out."""
    ratios = []
    for entry in np.stack([array(gradient).ravel() for gradient in gradients], axis=1):
        m = v = 0.0
        for g in entry:
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        if v > 0:
            ratios.append(abs(m) / math.sqrt(v))
    return float(np.median(ratios))


def attention(q: Tensor, k: Tensor, *, causal: bool, heads: bool = False) -> dict[str, float]:
    """One head and one query at a time; with `heads`, also of each head."""
    entropies: list[list[float]] = [[] for _ in range(q.shape[1])]
    logits: list[list[float]] = [[] for _ in range(q.shape[1])]
    for queries_of_sample, keys_of_sample in zip(array(q)[:8], array(k)[:8], strict=True):
        for head, (queries, keys) in enumerate(zip(queries_of_sample, keys_of_sample, strict=True)):
            for place, query in enumerate(queries):
                seen = keys[: place + 1] if causal else keys
                row = seen @ query / math.sqrt(len(query))
                logits[head].extend(row.tolist())
                weights = np.exp(row - row.max())
                weights /= weights.sum()
                entropies[head].append(-sum(w * math.log(w) for w in weights if w > 0))
    found = {"attention_entropy": float(np.mean(entropies)), "attention_max_logit": float(np.max(logits))}
    for head in range(q.shape[1]) if heads else ():
        found[f"attention_entropy[{head}]"] = float(np.mean(entropies[head]))
        found[f"attention_max_logit[{head}]"] = max(logits[head])
    return found
