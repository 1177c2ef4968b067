"""Kolen–Pollack learning: backward matrices that take the steps of the forward ones."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge, Le
from torch import Tensor

from sonde.checked import checked
from sonde.rules.fa import FeedbackAlignment
from sonde.rules.layers import Backward, cast, drawn, weights_of
from sonde.rules.rule import CreditScale, Facts, Matrix, Route, Rule, Signal


@final
@checked
class KolenPollack(Rule):
    """V starts as a draw of its own, takes every step that W takes, and both forget at the same rate: they meet.

    Kolen & Pollack (1994); Akrout et al. (2019), arXiv:1904.05391:  W ← (1 − ηλ)W + ΔW,  V ← (1 − ηλ)V + ΔW.  Both
    ends of a connection see the same product of activity and credit, so an optimiser at each takes the same step
    without the weights being sent.  So V − W shrinks by 1 − `decay` at every step, decay = ηλ, whatever the optimiser
    is: it is what the rule keeps.  The studies' AdamW has ηλ = 1e-5, too little for runs of thousands of steps, so V
    has a decay of its own.
    Exact limits: with V = W it is backprop; after enough steps it is, too.
    """

    decay: Annotated[float, Ge(0), Le(1)] = 1e-3
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "KP"
    route: ClassVar[Route] = "layer"
    chance: ClassVar[Rule] = FeedbackAlignment(level="layer")

    def init(self, facts: Facts, rng: torch.Generator) -> Backward:
        """V − W."""
        start = weights_of(facts.units)
        return Backward({name: v - start[name] for name, v in drawn(facts, rng).items()})

    def feedback(self, state: Backward, units: Sequence[Matrix]) -> Matrix:
        weights, apart = weights_of(units), cast(state.matrices, units)
        found = torch._foreach_add(list(weights.values()), list(apart.values()))
        return dict(zip(weights, found, strict=True))

    def update(self, state: Backward, signal: Signal) -> dict[str, Tensor]:
        torch._foreach_mul_(list(state.matrices.values()), 1 - self.decay)
        return {}
