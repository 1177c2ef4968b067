"""Direct feedback alignment.  N samples, T tokens, C outputs, d width."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor

from sonde.checked import checked
from sonde.rules.rule import CreditScale, Facts, Matrices, Route, Signal


def direct_feedback(facts: Facts, rng: torch.Generator) -> Matrices:
    """B_l ∈ R^{d×C} for every state, entries N(0, 1/C)."""
    scale = facts.outputs**-0.5
    return Matrices(
        [
            (torch.randn(shape[-1], facts.outputs, generator=rng) * scale).to(facts.device, facts.dtype)
            for shape in facts.shapes
        ]
    )


def send_error(matrices: Sequence[Tensor], signal: Signal) -> list[Tensor]:
    """e B_lᵀ for every state; of T tokens each gets the same, divided by √T."""
    credits = []
    for b_dC, h in zip(matrices, signal.states, strict=True):
        a_Nd = signal.error_NC @ b_dC.to(signal.error_NC.dtype).mT
        credits.append(
            a_Nd if h.ndim == a_Nd.ndim else (a_Nd / h.shape[-2] ** 0.5)[..., None, :].expand_as(h)
        )
    return credits


@final
@checked
class DirectFeedback:
    """Send the output error straight to every state through a fixed random matrix.

    Nøkland (2016), arXiv:1609.01596:  a_l = e B_lᵀ.
    Exact limit: with one hidden layer and B equal to the head's weight it is backprop.
    """

    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "DFA"
    route: ClassVar[Route] = "local"
    reads_top_gradient: ClassVar[bool] = False

    def init(self, facts: Facts, rng: torch.Generator) -> Matrices:
        return direct_feedback(facts, rng)

    def credits(self, state: Matrices, signal: Signal) -> list[Tensor]:
        return send_error(state.matrices, signal)

    def update(self, state: Matrices, signal: Signal) -> dict[str, Tensor]:
        return {}
