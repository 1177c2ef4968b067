"""Forward gradients: the directional derivative of the loss, times the random direction."""

from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor

from sonde.core.validated import validated
from sonde.rules.rule import CreditScale, Facts, LocalRule, Signal
from sonde.rules.states import RandomState, normal_like, seeded


@final
@validated
class ForwardGradient(LocalRule):
    """Estimate the gradient with one forward-mode pass along a random direction of all states; no backward pass.

    Baydin et al. (2022), arXiv:2202.08587; for states instead of weights Ren et al. (2023), arXiv:2210.03310:
    a_l = (Σ_k ⟨∇_{h_k} ℓ, v_k⟩) v_l,  v ~ N(0, 1), averaged over `directions`.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`).
    Exact limit: its mean over draws is the exact gradient, so with many directions it becomes backprop.
    """

    directions: Annotated[int, Ge(1)] = 1
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "forward gradient"
    needs: ClassVar[str] = "a forward-mode pass"
    reads_top_gradient: ClassVar[bool] = False
    chance: ClassVar[None] = None

    def init(self, facts: Facts, rng: torch.Generator) -> RandomState:
        return RandomState(seeded(rng))

    def credits(self, state: RandomState, signal: Signal) -> list[Tensor]:
        credits = [torch.zeros_like(h) for h in signal.states]
        for _ in range(self.directions):
            directions = normal_like(signal.states, state.rng)
            slope_N = (signal.jvp(directions) * signal.error).flatten(1).sum(-1) / self.directions
            for a, v in zip(credits, directions, strict=True):
                a.addcmul_(v, slope_N.view(-1, *[1] * (v.ndim - 1)))
        return credits
