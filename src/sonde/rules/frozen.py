"""The baseline that asks whether the blocks help at all."""

from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor

from sonde.core.validated import validated
from sonde.rules.rule import CreditScale, Nothing, Route, Rule, Signal


@final
@validated
class Frozen(Rule):
    """Blocks stay at their initialisation; embedding and readout get the exact gradient.

    Credit reaches h_0 alone: a_0 = g_0, and none is assigned to h_1 … h_L.  `penalty` has no block to restrain
    here and changes nothing.
    """

    credit_scale: CreditScale = "none"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "frozen"
    route: ClassVar[Route] = "frozen"
    reads_top_gradient: ClassVar[bool] = True
    chance: ClassVar[None] = None

    def credits(self, state: Nothing, signal: Signal) -> list[Tensor]:
        return [signal.gradients[0], *(torch.zeros_like(h) for h in signal.states[1:])]
