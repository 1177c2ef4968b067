"""Feedback alignment.  N samples, d width."""

from itertools import pairwise
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor

from sonde.checked import checked
from sonde.rules.rule import CreditScale, Facts, Matrices, Route, Signal


@final
@checked
class FeedbackAlignment:
    """Carry the exact top gradient down through fixed random matrices, one a block.

    Lillicrap et al. (2016), doi:10.1038/ncomms13276:  a_L = g_L,  a_l = a_{l+1} B_lᵀ,  B_l ~ N(0, 1/d).
    Exact limit: with B_l the transposed Jacobian of block l of a linear network it is backprop.
    """

    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "FA"
    route: ClassVar[Route] = "local"
    reads_top_gradient: ClassVar[bool] = True

    def init(self, facts: Facts, rng: torch.Generator) -> Matrices:
        widths = [shape[-1] for shape in facts.shapes]
        return Matrices(
            [
                (torch.randn(below, above, generator=rng) / above**0.5).to(facts.device, facts.dtype)
                for below, above in pairwise(widths)
            ]
        )

    def credits(self, state: Matrices, signal: Signal) -> list[Tensor]:
        credits = [signal.top_gradient]
        for b_dd in reversed(state.matrices):
            credits.append(credits[-1] @ b_dd.to(credits[-1].dtype).mT)
        return credits[::-1]

    def update(self, state: Matrices, signal: Signal) -> dict[str, Tensor]:
        return {}
