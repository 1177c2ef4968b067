"""Direct Kolen–Pollack: direct feedback that learns as the head does.  N samples, C outputs, d width."""

from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from sonde.core.validated import validated
from sonde.rules.dfa import DirectFeedback, direct_feedback, gather, send
from sonde.rules.rule import CreditScale, Facts, LocalRule, Matrices, Route, Rule, Signal


@final
@validated
class DirectKolenPollack(LocalRule):
    """DFA whose matrices take the step that a head on their state would take.

    Webster, Choi & Ahn (2021), openreview.net/forum?id=zgGmAx9ZcY:  a_l = e B_lᵀ,
    B_l ← (1 − ηλ)B_l − η·mean_i h_l ⊗ e,  with η = `lr` and ηλ = `decay`.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`); and B_l takes plain gradient steps while
    the studies train the head with AdamW, so the two do not take the same step and need not meet.
    Exact limit: at a state that a linear head reads, with the head's rate and decay, B − W_headᵀ shrinks by 1 − ηλ
    at every step.
    """

    lr: Annotated[float, Gt(0)] = 1e-2
    decay: Annotated[float, Ge(0), Le(1)] = 1e-3
    per_channel: bool = False
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "DKP"
    route: ClassVar[Route] = "local"
    reads_top_gradient: ClassVar[bool] = False

    @property
    def chance(self) -> Rule:
        return DirectFeedback(per_channel=self.per_channel)

    def init(self, facts: Facts, rng: torch.Generator) -> Matrices:
        return direct_feedback(facts, rng, per_channel=self.per_channel)

    def credits(self, state: Matrices, signal: Signal) -> list[Tensor]:
        return send(signal.error, state.matrices, signal.states)

    def update(self, state: Matrices, signal: Signal) -> dict[str, Tensor]:
        steps = gather(signal.error, state.matrices, signal.states)
        torch._foreach_mul_(state.matrices, 1 - self.decay)
        torch._foreach_add_(state.matrices, steps, alpha=-self.lr)
        return {}
