"""Backpropagation, and the baseline whose blocks stay frozen."""

from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor

from sonde.core.validated import validated
from sonde.rules.rule import CreditScale, Nothing, Route, Rule, Signal


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
