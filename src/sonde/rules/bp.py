"""Backpropagation."""

from typing import Annotated, ClassVar, final

from annotated_types import Ge
from torch import Tensor

from sonde.core.validated import validated
from sonde.rules.rule import CreditScale, Nothing, Route, Rule, Signal


@final
@validated
class Backprop(Rule):
    """Credit is the gradient itself: a_l = g_l, by automatic differentiation across the blocks.

    Rumelhart, Hinton & Williams (1986).  The reference every other rule is compared with.  With
    `credit_scale: rms` each unit descends along its gradient normalised over the batch.
    """

    credit_scale: CreditScale = "none"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "BP"
    reads_top_gradient: ClassVar[bool] = True
    chance: ClassVar[None] = None

    @property
    def route(self) -> Route:
        return "global" if self.credit_scale == "none" else "local"

    def credits(self, state: Nothing, signal: Signal) -> list[Tensor]:
        return list(signal.gradients)
