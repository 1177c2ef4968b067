"""Kolen–Pollack learning: backward matrices that receive the updates of the forward ones."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.validated import validated
from sonde.rules.fa import FeedbackAlignment
from sonde.rules.rule import CreditScale, Facts, Matrix, Route, Rule, Signal
from sonde.rules.states import BackwardMatrices, cast_like, drawn, weights_of


class Followers(BackwardMatrices):
    """V.  Until V has changed once, also the first W and V of the last step, to check that V is trained."""

    def __init__(self, matrices: dict[str, nn.Parameter]) -> None:
        super().__init__(dict(matrices))
        self.parameters = list(matrices.values())
        self.seen: tuple[Tensor, Tensor] | None = None
        self.moved = not matrices

    def follow(self, gradients: Matrix) -> None:
        """Set the gradient of V to that of W; the optimiser updates both."""
        for name, v in self.matrices.items():
            v.grad = gradients[name].clone() if name in gradients else None

    def check(self, weights: Matrix) -> None:
        """Refuse an optimiser that updates W but not V.  The compared values do not affect training."""
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
    """Backprop through V instead of W.  V receives the same updates and weight decay as W, so it converges to W.

    Kolen & Pollack (1994); Akrout et al. (2019), arXiv:1904.05391:  W ← (1 − ηλ)W + ΔW,  V ← (1 − ηλ)V + ΔW.  V starts
    as an independent draw.  It gets the gradient of W and the same optimiser with the same weight decay; it never
    reads a value of W.  Under AdamW, and under SGD without momentum, V − W shrinks by 1 − ηλ at every step; η is the
    learning rate and λ the `weight_decay` of the optimiser.  With `weight_decay` 0 it does not shrink.  The decay of
    `adam` goes through its moments, so V − W need not shrink by this factor.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`), and the studies train with AdamW, whose ηλ
    is at most 1e-5.
    Exact limits: with V = W it is backprop; with λ > 0 it becomes backprop after enough steps.
    Version 1 set V to W plus a difference that decayed by 1e-3 a step: it read W, and W did not decay with it.
    """

    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "KP"
    needs: ClassVar[str] = "a backward pass through every block; matrices that get the updates and decay of the weights"
    route: ClassVar[Route] = "layer"
    chance: ClassVar[Rule] = FeedbackAlignment(level="layer")
    version: ClassVar[int] = 2

    def init(self, facts: Facts, rng: torch.Generator) -> Followers:
        return Followers({name: nn.Parameter(v, requires_grad=False) for name, v in drawn(facts, rng).items()})

    def feedback(self, state: BackwardMatrices, units: Sequence[Matrix]) -> Matrix:
        return cast_like(state.matrices, units)

    def update(self, state: Followers, signal: Signal) -> dict[str, Tensor]:
        if not state.moved:
            state.check(weights_of(signal.units))
        state.follow(weights_of(signal.gradients_of_units))
        return {}

    def followers(self, state: Followers) -> list[nn.Parameter]:
        return state.parameters
