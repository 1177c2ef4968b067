"""Direct feedback alignment.  N samples, T tokens, C outputs, d width."""

import math
import warnings
from collections.abc import Sequence
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor

from sonde.core.validated import validated
from sonde.rules.rule import CreditScale, Facts, LocalRule, Matrices, Route, Signal

LARGE = 2**30  # bytes of feedback matrices that are worth a word


def direct_feedback(facts: Facts, rng: torch.Generator, *, per_channel: bool = False) -> Matrices:
    """B_l ∈ R^{d×C} for every state, entries N(0, 1/C); of maps all numbers, or the channels, are the width d."""
    scale = facts.outputs**-0.5
    widths = [_width(shape, per_channel) for shape in facts.shapes]
    size = sum(widths) * facts.outputs * torch.finfo(facts.dtype).bits // 8
    if size >= LARGE:
        warnings.warn(
            f"the feedback matrices of dfa take {size / 2**30:.1f} GiB; of maps, per_channel=True takes less",
            stacklevel=2,
        )
    return Matrices(
        [(torch.randn(d, facts.outputs, generator=rng) * scale).to(facts.device, facts.dtype) for d in widths]
    )


def _width(shape: tuple[int, ...], per_channel: bool) -> int:
    if len(shape) == 3:
        return shape[0] if per_channel else math.prod(shape)
    return shape[-1]


def send(e: Tensor, matrices: Sequence[Tensor], states: Sequence[Tensor]) -> list[Tensor]:
    """e B_lᵀ for every state, e in the shape of the output.

    Of T tokens each gets the same, divided by √T, or its own where each has an output of its own.  Of a map every
    number has its row of B_l, or every channel, whose positions then share it, divided by √(number of positions).
    """
    credits = []
    for b_dC, h in zip(matrices, states, strict=True):
        b_dC = b_dC.to(e.dtype)
        a = _seen_from(e, b_dC, h) @ b_dC.mT
        if a.ndim == h.ndim:
            credits.append(a)
        elif h.ndim == 3:
            credits.append((a / h.shape[1] ** 0.5)[:, None].expand_as(h))
        elif len(b_dC) == h[0].numel():
            credits.append(a.view_as(h))
        else:
            credits.append((a / h[0, 0].numel() ** 0.5)[..., None, None].expand_as(h))
    return credits


def gather(
    e: Tensor, matrices: Sequence[Tensor], vectors: Sequence[Tensor], *, over_tokens: bool = False
) -> list[Tensor]:
    """mean_i v_l ⊗ e in the shape of B_l, for v_l in the shape of a state: the gradient of mean_i ⟨e B_lᵀ, v_l⟩.

    Where every token has an output, it is the sum over a sample's tokens, or the mean over them.
    """
    found = []
    for b_dC, v in zip(matrices, vectors, strict=True):
        seen, count = _seen_from(e, b_dC, v), len(e)
        if seen.ndim == v.ndim:
            v, seen = v.flatten(0, -2), seen.flatten(0, -2)
            count = len(v) if over_tokens else count
        elif v.ndim == 3:
            v = v.sum(1) / v.shape[1] ** 0.5
        elif len(b_dC) == v[0].numel():
            v = v.flatten(1)
        else:
            v = v.sum((2, 3)) / v[0, 0].numel() ** 0.5
        found.append((v.mT @ seen / count).to(b_dC.dtype))
    return found


def _seen_from(e: Tensor, b_dC: Tensor, h: Tensor) -> Tensor:
    """e as it is sent to h: token by token where both have the same, else all numbers of a sample in a row."""
    alike = e.shape[:-1] == h.shape[:-1] and e.shape[-1] == b_dC.shape[-1]
    return e if e.ndim == 2 or alike else e.flatten(1)


@final
@validated
class DirectFeedback(LocalRule):
    """Send the output error straight to every state through a fixed random matrix.

    Nøkland (2016), arXiv:1609.01596:  a_l = e B_lᵀ.  With `per_channel` the positions of a map share the credit of
    their channel, and B_l is smaller by their number.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`).
    Exact limit: with one hidden layer and B equal to the head's weight it is backprop.
    """

    per_channel: bool = False
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "DFA"
    route: ClassVar[Route] = "local"
    reads_top_gradient: ClassVar[bool] = False

    def init(self, facts: Facts, rng: torch.Generator) -> Matrices:
        return direct_feedback(facts, rng, per_channel=self.per_channel)

    def credits(self, state: Matrices, signal: Signal) -> list[Tensor]:
        return send(signal.error, state.matrices, signal.states)
