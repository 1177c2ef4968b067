"""The loss of a step, from the losses that were heard in it.

A backward pass through a loss tells the weight w with which it was differentiated.  Losses of one backward pass are
parts of one sum, Σ w·loss; those of several backward passes are micro-batches, and averaged.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

CLOSE = 1e-3  # two weights are equal

WEIGHTED = (
    "several losses in each of several backward passes, weighted in a way that does not tell the loss of the step: "
    "give a function as loss=, and watch.log(loss)"
)


@dataclass(slots=True, eq=False)
class HeardLoss:
    """One call of a loss, or a loss that the user told."""

    value: Tensor  # its mean, a vector of one
    is_share: bool = False  # it was divided by the samples of all micro-batches, not by its own
    backward: int | None = None  # autograd's number of the backward pass that went through it
    weight: Tensor | None = None  # Σ ∂(what is differentiated)/∂(entries of the loss)
    part: Tensor | None = None  # Σ (the same)·(entries of the loss), where they are several

    def came_back(self, backward: int, grad: Tensor, entries: Tensor | None) -> None:
        """A gradient comes back to the loss; `entries` are its values where they are several."""
        if self.backward is not None:
            return
        self.backward = backward
        self.weight = grad.detach().sum().reshape(1)
        self.part = None if entries is None else (grad.detach() * entries).sum().reshape(1)

    def tensors(self) -> list[Tensor]:
        return [tensor for tensor in (self.value, self.weight, self.part) if tensor is not None]


def differentiated(losses: Sequence[HeardLoss]) -> list[HeardLoss]:
    """Those that a backward pass went through; all, where none did."""
    return [loss for loss in losses if loss.backward is not None] or list(losses)


def loss_of_step(
    losses: Sequence[HeardLoss], read: Callable[[Tensor], float], scale: float, unscaled: str | None
) -> tuple[float, str | None]:
    """The loss and why there is none; `scale` is the factor that a GradScaler put into the weights."""
    if all(loss.backward is None for loss in losses):
        return _mean([read(loss.value) for loss in losses]), None
    by_pass: dict[int | None, list[HeardLoss]] = {}
    for loss in losses:
        by_pass.setdefault(loss.backward, []).append(loss)
    shares = any(loss.is_share for loss in losses)
    alone = not shares and all(len(group) == 1 for group in by_pass.values())
    if alone and (len(losses) == 1 or unscaled is not None):
        return _mean([read(loss.value) for loss in losses]), None
    if unscaled is not None:
        return math.nan, unscaled
    sums = [sum(_part(loss, read) for loss in group) / scale for group in by_pass.values()]
    if len(by_pass) == 1 or shares:
        return sum(sums), None
    tops = [
        max(abs(read(loss.weight)) for loss in group if loss.weight is not None) / scale for group in by_pass.values()
    ]
    if abs(sum(tops) - 1) < CLOSE:  # the weights share one loss out to the micro-batches
        return sum(sums), None
    if alone:
        return _mean([read(loss.value) for loss in losses]), None
    if all(abs(top - 1) < CLOSE for top in tops):
        return _mean(sums), None
    return math.nan, WEIGHTED


def _part(loss: HeardLoss, read: Callable[[Tensor], float]) -> float:
    """What the loss adds to what is differentiated."""
    if loss.part is not None:
        return read(loss.part)
    return 0.0 if loss.weight is None else read(loss.weight) * read(loss.value)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
