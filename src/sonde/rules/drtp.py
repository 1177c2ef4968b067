"""Direct random target projection.  N samples, C outputs, d width."""

from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor

from sonde.core.validated import validated
from sonde.rules.dfa import direct_feedback, send
from sonde.rules.rule import CreditScale, Facts, LocalRule, Matrices, Route, Signal


@final
@validated
class TargetProjection(LocalRule):
    """Send the target, not the error, to every state: blocks learn before the output is known.

    Frenkel, Lefebvre & Bol (2021), arXiv:1909.01311:  a_l = −y B_lᵀ, y the label as 0s and a 1 (or the target itself),
    B_l ~ N(0, 1/C).  The sign is that of the error of a class that is not predicted yet, e = p − y.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`).
    Exact limit: where every output is zero it is DFA under the squared error, times C/2.
    """

    per_channel: bool = False
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "DRTP"
    route: ClassVar[Route] = "local"
    reads_top_gradient: ClassVar[bool] = False

    def init(self, facts: Facts, rng: torch.Generator) -> Matrices:
        return direct_feedback(facts, rng, per_channel=self.per_channel)

    def credits(self, state: Matrices, signal: Signal) -> list[Tensor]:
        return send(-signal.targets, state.matrices, signal.states)
