"""Weight mirrors: backward matrices that learn the forward ones from noise.  S samples, i inputs, o outputs."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from sonde.core.validated import validated
from sonde.rules.fa import FeedbackAlignment
from sonde.rules.rule import CreditScale, Facts, Matrix, Route, Rule, Signal
from sonde.rules.states import StoredState, cast_like, drawn, seeded, weights_of


class Mirrors(StoredState):
    """V, the generator of the noise, and the number of steps."""

    parts: ClassVar = {"matrices": "matrices", "rng": "rng", "steps": "steps"}

    def __init__(self, matrices: dict[str, Tensor], rng: torch.Generator) -> None:
        self.matrices, self.rng, self.steps = matrices, rng, 0


@final
@validated
class WeightMirror(Rule):
    """Backprop through V instead of W.  Every `every` steps V learns W from the response of W to noise.

    Akrout et al. (2019), arXiv:1904.05391:  y = W x,  V ← V + rate · cov(y, x),  then V is rescaled to the norm of W;
    x are `samples` normal vectors, so the expectation of cov(y, x) is W.  The input of a convolution's matrix is a
    patch.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`); the noise passes through W alone, without
    bias and activation function; and V is rescaled to the norm of W, which the paper's rule does not read.
    Exact limit: V converges to W as the number of samples grows.
    """

    every: Annotated[int, Ge(1)] = 10
    samples: Annotated[int, Ge(2)] = 128
    rate: Annotated[float, Gt(0)] = 0.1
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "mirror"
    needs: ClassVar[str] = "a backward pass through every block; matrices that learn the weights from noise"
    route: ClassVar[Route] = "layer"
    chance: ClassVar[Rule] = FeedbackAlignment(level="layer")

    def init(self, facts: Facts, rng: torch.Generator) -> Mirrors:
        return Mirrors(drawn(facts, rng), seeded(rng))

    def feedback(self, state: Mirrors, units: Sequence[Matrix]) -> Matrix:
        return cast_like(state.matrices, units)

    def update(self, state: Mirrors, signal: Signal) -> dict[str, Tensor]:
        if state.steps % self.every == 0:
            for name, w in weights_of(signal.units).items():
                v_oi, w_oi = state.matrices[name].flatten(1), w.flatten(1)
                x_Si = torch.randn(self.samples, w_oi.shape[1], generator=state.rng).to(w)
                y_So = x_Si @ w_oi.mT
                v_oi.addmm_((y_So - y_So.mean(0)).mT, x_Si - x_Si.mean(0), alpha=self.rate / (self.samples - 1))
                v_oi.mul_(w.norm() / v_oi.norm().clamp_min(torch.finfo(v_oi.dtype).tiny))
        state.steps += 1
        return {}
