"""Kolen–Pollack learning: backward matrices that take the steps of the forward ones."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.validated import validated
from sonde.rules.fa import FeedbackAlignment
from sonde.rules.layers import Backward, cast, drawn, weights_of
from sonde.rules.rule import CreditScale, Facts, Matrix, Route, Rule, Signal


class Followers(Backward):
    """V; and, until V was seen to move, the first W and V of the last step."""

    def __init__(self, matrices: dict[str, nn.Parameter]) -> None:
        super().__init__(dict(matrices))
        self.parameters = list(matrices.values())
        self.seen: tuple[Tensor, Tensor] | None = None
        self.moved = not matrices

    def follow(self, gradients: Matrix) -> None:
        """Give V the gradient of W; the optimiser does the rest."""
        for name, v in self.matrices.items():
            v.grad = gradients[name].clone() if name in gradients else None

    def check(self, weights: Matrix) -> None:
        """Refuse an optimiser that changes W and not V.  Nothing is learned from the values that are compared."""
        name, v = next(iter(self.matrices.items()))
        w = weights[name]
        if self.seen is not None:
            self.moved = not torch.equal(v, self.seen[1])
            if not self.moved and not torch.equal(w, self.seen[0]):
                raise SondeError(
                    "kp: the optimiser changed the weights and not the backward matrices that follow them: make it "
                    "with assignment.parameters() in place of the network's own"
                )
        self.seen = None if self.moved else (w.clone(), v.clone())


@final
@validated
class KolenPollack(Rule):
    """V starts as a draw of its own, takes every step that W takes, and both decay at the same rate: they meet.

    Kolen & Pollack (1994); Akrout et al. (2019), arXiv:1904.05391:  W ← (1 − ηλ)W + ΔW,  V ← (1 − ηλ)V + ΔW.  Both
    ends of a connection see the same product of activity and credit: V gets the gradient of W and an equal optimiser,
    with the same weight decay, and no value of W reaches it.  Under AdamW, and under SGD without momentum, V − W
    shrinks by 1 − ηλ at every step, η the rate and λ the `weight_decay` of the optimiser; with `weight_decay` 0 it
    stays.  The decay of `adam` goes through its moments, so there V − W need not shrink by this factor.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`), and the studies train with AdamW, whose ηλ
    is at most 1e-5.
    Exact limits: with V = W it is backprop; after enough steps with λ > 0 it is, too.
    Version 1 set V to W plus a difference that had a decay of its own, 1e-3 a step: it read W, and W had no such decay.
    """

    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "KP"
    route: ClassVar[Route] = "layer"
    chance: ClassVar[Rule] = FeedbackAlignment(level="layer")
    version: ClassVar[int] = 2

    def init(self, facts: Facts, rng: torch.Generator) -> Followers:
        return Followers({name: nn.Parameter(v, requires_grad=False) for name, v in drawn(facts, rng).items()})

    def feedback(self, state: Backward, units: Sequence[Matrix]) -> Matrix:
        return cast(state.matrices, units)

    def update(self, state: Followers, signal: Signal) -> dict[str, Tensor]:
        if not state.moved:
            state.check(weights_of(signal.units))
        state.follow(weights_of(signal.gradients_of_units))
        return {}

    def followers(self, state: Followers) -> list[nn.Parameter]:
        return state.parameters
