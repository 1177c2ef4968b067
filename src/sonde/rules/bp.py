"""The exact gradient as credit, an estimate of it without a backward pass, and the baseline of frozen blocks."""

from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor

from sonde.core.validated import validated
from sonde.rules.rule import CreditScale, Facts, LocalRule, Nothing, Route, Rule, Signal
from sonde.rules.states import RandomState, normal_like, seeded


@final
@validated
class Backprop(Rule):
    """Use the exact gradient as the credit: a_l = g_l, by automatic differentiation across the blocks.

    Rumelhart, Hinton & Williams (1986).  All other rules are compared with it.  With `credit_scale: rms` each unit
    descends along its gradient divided by its root mean square over the batch.
    """

    credit_scale: CreditScale = "none"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "BP"
    needs: ClassVar[str] = "the weights in the backward pass, through every block"
    chance: ClassVar[None] = None

    @property
    def route(self) -> Route:
        return "global" if self.credit_scale == "none" else "local"

    def credits(self, state: Nothing, signal: Signal) -> list[Tensor]:
        return list(signal.gradients)


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


@final
@validated
class Frozen(Rule):
    """Keep the blocks at their initialisation; train embedding and readout with the exact gradient.

    The baseline that shows whether training the blocks helps.  Credit reaches h_0 alone: a_0 = g_0, and h_1 … h_L get
    none.  `penalty` has no effect, because no block is trained.
    """

    credit_scale: CreditScale = "none"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "frozen"
    needs: ClassVar[str] = "the weights in the backward pass, for the embedding only; blocks stay at initialisation"
    route: ClassVar[Route] = "frozen"
    chance: ClassVar[None] = None

    def credits(self, state: Nothing, signal: Signal) -> list[Tensor]:
        return [signal.gradients[0], *(torch.zeros_like(h) for h in signal.states[1:])]
