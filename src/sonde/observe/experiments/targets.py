"""What kind of targets a batch has, told from their numbers alone."""

from typing import Any

import torch
from torch import Tensor

from sonde.observe.facts import tensors

FEWEST = 16  # samples from which a batch of one class says something


def describe_targets(y: Any, outputs: Tensor | None) -> dict[str, Any]:
    """`kind`: classes (whole numbers that name one), one-hot, labels (several may hold), binary, real, or none."""
    if not isinstance(y, Tensor) or not y.numel() or y.is_complex():
        return {"kind": "none"}
    flat = y.detach().double()
    known: dict[str, Any] = {
        "shape": list(y.shape),
        "mean": float(flat.mean()),
        "std": float(flat.std(correction=0)),
        "min": float(flat.min()),
        "max": float(flat.max()),
        "rms": float(flat.square().mean().sqrt()),
        "distinct": len(set(flat.flatten().tolist())),
    }
    return known | {"kind": _kind(y, flat, outputs)}


def _kind(y: Tensor, flat: Tensor, outputs: Tensor | None) -> str:
    if not y.is_floating_point():
        named = outputs is None or (outputs.dim() == y.dim() + 1)
        return "classes" if named else "binary" if flat.max() <= 1 and flat.min() >= 0 else "real"
    if not bool(((flat == 0) | (flat == 1)).all()):
        return "real"
    if y.dim() < 2 or y.shape[-1] == 1:
        return "binary"
    if y.dim() == 2 and bool((flat.sum(-1) == 1).all()):
        return "one-hot"
    return "labels" if y.dim() == 2 and y.shape[-1] <= y.shape[0] else "real"


def samples(x: Any, y: Any) -> int | None:
    """How many samples a batch has: what every tensor of inputs and targets has along its first axis, if it is one."""
    known = [tensor for _, tensor in tensors((x, y)) if tensor.layout != torch.strided or tensor.dim()]
    if any(tensor.layout != torch.strided for tensor in known):
        return None
    sizes = {len(tensor) for tensor in known}
    return sizes.pop() if len(sizes) == 1 else None


def taken(value: Any, places: Tensor, many: int) -> Any:
    """Some samples of whatever has as many along its first axis."""
    if isinstance(value, Tensor):
        return value[places] if value.dim() and value.shape[0] == many else value
    if isinstance(value, dict):
        return {key: taken(inner, places, many) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        inner = [taken(one, places, many) for one in value]
        return inner if isinstance(value, list) else tuple(inner)
    return value


def standardised(x: Any) -> Any:
    """Floating-point inputs with mean 0 and spread 1 in each feature (of maps and sequences: over all of a channel)."""
    if isinstance(x, Tensor):
        if not x.is_floating_point() or x.dim() < 2 or x.layout != torch.strided:
            return x
        axes = [0] if x.dim() == 2 else [axis for axis in range(x.dim()) if axis != (1 if x.dim() > 3 else x.dim() - 1)]
        spread = x.std(axes, correction=0, keepdim=True)
        return (x - x.mean(axes, keepdim=True)) / torch.where(spread > 0, spread, 1.0)
    if isinstance(x, dict):
        return {key: standardised(inner) for key, inner in x.items()}
    if isinstance(x, list | tuple):
        inner = [standardised(one) for one in x]
        return inner if isinstance(x, list) else tuple(inner)
    return x
