"""What inputs tell of their targets, in one batch: nearest inputs, a linear fit, a feature that equals the target."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sonde.metrics.reductions import pearson
from sonde.observe.experiments.copies import describe_targets, standardised, take_samples
from sonde.observe.facts import tensors

SAMPLES = 128  # of a batch that are used
_FEATURES = 4096  # of an input that are compared
_FEWEST = 24  # samples that tell
_BY_CHANCE = 0.01  # features, on average, that tell the classes of labels drawn at random
_EQUAL = 0.9999  # a correlation of numbers that are the same up to scale


def pairs_of_step(x: Any, y: Any, output: Tensor | None) -> dict[str, Any]:
    """All of it, of the inputs and the targets of one step; empty where they cannot be compared."""
    try:
        kind = describe_targets(y, output)["kind"]
        return {
            "kind": kind,
            "nearest": nearest_inputs(x, y, kind),
            "relation": (relation(x, y) or None) if kind == "real" else None,
            "leak": leak(x, y, kind),
        }
    except (RuntimeError, ValueError, TypeError, IndexError):
        return {}


def sample_places(many: int) -> Tensor:
    """Places of some samples: the same draw for every batch of this size."""
    return torch.randperm(many, generator=torch.Generator().manual_seed(0))[:SAMPLES].sort().values


def _some(x: Any, y: Any, axes: Sequence[int] | None) -> tuple[Tensor | None, Any]:
    """The first floating-point input with so many axes (None: two or more), and the targets, of 128 samples."""
    known = (t for _, t in tensors(x) if t.is_floating_point() and t.layout == torch.strided)
    first = next((t for t in known if (t.dim() > 1 if axes is None else t.dim() in axes)), None)
    if first is None or not isinstance(y, Tensor) or len(first) <= SAMPLES:
        return first, y
    places = sample_places(len(first))
    return first[places], take_samples(y, places, len(first))


def _features(given: Tensor) -> Tensor:
    """Standardised features in float64; of large inputs, some at even distances."""
    flat = given.flatten(1)
    some: Tensor = standardised(flat[:, :: max(1, flat.shape[1] // _FEATURES)])
    return some.double()


def nearest_inputs(x: Any, y: Any, kind: str) -> dict[str, float] | None:
    """How often the nearest other input has the same class, and how often any other one has.

    Of vectors and images only: two sequences may mean the same without being near.
    """
    given, y = _some(x, y, (2, 4))
    if kind == "one-hot" and isinstance(y, Tensor):
        y = y.argmax(-1)
    if given is None or not isinstance(y, Tensor) or kind not in ("classes", "one-hot", "binary"):
        return None
    y = y.flatten()
    if len(y) != len(given) or len(y) < _FEWEST:
        return None
    flat = _features(given)
    apart = torch.cdist(flat, flat).fill_diagonal_(math.inf)
    same = (y[:, None] == y[None]).double().fill_diagonal_(0.0)
    return {
        "agree": float((y[apart.argmin(1)] == y).double().mean()),
        "by_chance": float(same.sum() / (len(y) * (len(y) - 1))),
        "n": len(y),
    }


def leak(x: Any, y: Any, kind: str) -> dict[str, int] | None:
    """The input feature, of vectors, that gives the target exactly: classes in an order, or the number itself."""
    given, y = _some(x, y, (2,))
    if given is None or not isinstance(y, Tensor) or y.numel() != len(given) or given.shape[1] < 2:
        return None
    if len(given) < _FEWEST:
        return None
    given, y = given.double(), y.flatten().double()
    if kind == "real":
        told = [place for place, column in enumerate(given.T) if abs(_correlation(column, y)) > _EQUAL]
    else:
        told = _tells_classes(given, [given[y == known] for known in set(y.tolist())])
    return {"feature": told[0], "n": len(given)} if told else None


def _tells_classes(given: Tensor, classes: Sequence[Tensor]) -> list[int]:
    """The first feature that has one value in each class, where chance does not explain it; empty if there is none.

    A class of n samples has one value of a feature by chance with the probability Σ pⁿ over its values, of shares p.
    The product over classes, times the number of features, is below 0.01.
    """
    if len(classes) == len(given):
        return []
    most = (given == given.mode(0).values).double().mean(0)
    spread = torch.stack([part.std(0, correction=0) for part in classes]).amax(0)
    alike = (spread <= 1e-6 * given.std(0, correction=0)) & (given.std(0) > 0)
    for feature in (alike & (given.shape[1] * most ** len(given) < _BY_CHANCE)).nonzero().flatten().tolist():
        shares = (given[:, feature, None] == given[:, feature]).double().mean(1)  # of each sample's value
        chance = math.prod(float((shares ** (len(part) - 1)).mean()) for part in classes)
        if given.shape[1] * chance < _BY_CHANCE:
            return [feature]
    return []


def relation(x: Any, y: Any) -> dict[str, float]:
    """How well other samples predict a target: the correlation with the target of the nearest input, and with a
    ridge regression on all the others.
    """
    given, y = _some(x, y, None)
    if given is None or len(y) != len(given) or y.numel() != len(given) or len(given) < _FEWEST:
        return {}
    flat, y = _features(given), y.flatten().double()
    apart = torch.cdist(flat, flat).fill_diagonal_(math.inf)
    inner = flat @ flat.T + 1.0
    hat = torch.linalg.solve(inner + 0.1 * inner.diagonal().mean() * torch.eye(len(y)).to(inner), inner)
    left_out = (hat @ y - hat.diagonal() * y) / (1 - hat.diagonal())
    return {"nearest": _correlation(y[apart.argmin(1)], y), "line": _correlation(left_out, y), "n": len(y)}


def _correlation(a: Tensor, b: Tensor) -> float:
    """Pearson's correlation; 0 where one side has no spread."""
    (found,) = pearson(a[None], b)
    return 0.0 if math.isnan(found) else found
