"""The numbers behind many short tensors, brought over in one transfer."""

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sonde.observe.step_record import Call

Vector = NDArray[np.float64]
Median = tuple[float, int, str | None]  # value, number of samples, why it is undefined


class Values:
    """What each tensor holds; sums over each are taken for all of them in one go."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._kept = {id(tensor): tensor for tensor in tensors}  # as long as it is kept, its identity is its own
        by_device: dict[torch.device, list[Tensor]] = {}
        for tensor in self._kept.values():
            if tensor.numel():
                by_device.setdefault(tensor.device, []).append(tensor)
        ordered = [tensor for members in by_device.values() for tensor in members]
        self._place = {id(tensor): place for place, tensor in enumerate(ordered)}
        self._flat = _joined([_brought(members) for members in by_device.values()] or [np.zeros(0)])
        self._ends = list(itertools.accumulate(tensor.numel() for tensor in ordered))
        self._starts = [0, *self._ends[:-1]] if ordered else []
        self._squares = self._over_each(np.add, self._flat * self._flat)
        self._totals = self._over_each(np.add, self._flat)
        self._zeros = self._over_each(np.add, (self._flat == 0).astype(np.float64))
        self._tops = self._over_each(np.maximum, self._flat)

    def _over_each(self, what: np.ufunc, numbers: Vector) -> list[float]:
        found: list[float] = what.reduceat(numbers, self._starts).tolist() if self._starts else []
        return found

    def __call__(self, tensor: Tensor) -> Vector:
        place = self._place.get(id(tensor))
        return self._flat[:0] if place is None else self._flat[self._starts[place] : self._ends[place]]

    def square(self, tensor: Tensor) -> float:
        """Σx²."""
        return self._squares[self._place[id(tensor)]]

    def total(self, tensor: Tensor) -> float:
        """Σx."""
        return self._totals[self._place[id(tensor)]]

    def top(self, tensor: Tensor) -> float:
        """max x; NaN where one is."""
        return self._tops[self._place[id(tensor)]]

    def zeros(self, tensor: Tensor) -> int:
        """How many are exactly zero."""
        return int(self._zeros[self._place[id(tensor)]])


def _brought(tensors: Sequence[Tensor]) -> Vector:
    """All numbers of tensors on one device, one after the other."""
    flat = torch.cat([tensor if tensor.dim() == 1 else tensor.reshape(-1) for tensor in tensors])
    found: Vector = flat.cpu().double().numpy()
    return found


def _joined(parts: Sequence[Vector]) -> Vector:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class Streams:
    """Medians over samples of ‖out − in‖/‖in‖ and cos(in, out)."""

    def __init__(self, calls: Iterable[Call], values: Values) -> None:
        """Of the calls of one pass without a zero among their norms, those of one length at once."""
        self._values = values
        self._known: dict[int, tuple[Median, Median]] = {}
        by_length: dict[int, list[Call]] = {}
        for call in calls:
            if len(call.streams) == 1:
                stream = call.streams[0]
                if not values.zeros(stream.inputs) and not values.zeros(stream.outputs):
                    by_length.setdefault(stream.steps.numel(), []).append(call)
        for length, group in by_length.items():
            steps, dots, ins, outs = (
                np.concatenate([values(getattr(call.streams[0], part)) for call in group]).reshape(-1, length)
                for part in ("steps", "dots", "inputs", "outputs")
            )
            for call, step, cosine in zip(group, _middle(steps / ins), _middle(dots / (ins * outs)), strict=True):
                self._known[id(call)] = (step, length, None), (cosine, length, None)

    def __call__(self, call: Call) -> tuple[Median, Median]:
        return self._known.get(id(call)) or self._alone(call)

    def _alone(self, call: Call) -> tuple[Median, Median]:
        """Where passes were pooled, or an input or output is zero."""
        steps, dots, ins, outs = (
            _joined([self._values(getattr(stream, part)) for stream in call.streams])
            for part in ("steps", "dots", "inputs", "outputs")
        )
        return (
            _median(steps, ins, "every input is zero"),
            _median(dots, ins * outs, "every input or output is zero"),
        )


def _median(over: Vector, under: Vector, none: str) -> Median:
    there = under != 0
    if not there.any():
        return math.nan, 0, none
    ratios = over[there] / under[there]
    return _middle(ratios.reshape(1, -1))[0], ratios.size, None


def _middle(lines: Vector) -> list[float]:
    """The median of each line; NaN where one of its numbers is."""
    ordered = np.sort(lines, axis=1)
    many = ordered.shape[1]
    middle = (ordered[:, (many - 1) // 2] + ordered[:, many // 2]) / 2
    found: list[float] = np.where(np.isnan(ordered[:, -1]), np.nan, middle).tolist()
    return found
