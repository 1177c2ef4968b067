"""Weight mirrors: backward matrices that learn the forward ones from noise.  S samples, i inputs, o outputs."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, final

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from sonde.core.validated import validated
from sonde.rules.fa import FeedbackAlignment
from sonde.rules.layers import Backward, cast, drawn, weights_of
from sonde.rules.rule import CreditScale, Facts, Matrix, Route, Rule, Signal, seeded


class Mirrors:
    """V, the noise, and the number of steps."""

    def __init__(self, backward: Backward, rng: torch.Generator) -> None:
        self.backward, self.rng, self.steps = backward, rng, 0

    def state_dict(self) -> dict[str, Any]:
        return {**self.backward.state_dict(), "rng": self.rng.get_state(), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.backward.load_state_dict(state)
        self.rng.set_state(state["rng"])
        self.steps = state["steps"]

    def double(self, device: torch.device) -> "Mirrors":
        return Mirrors(self.backward.double(device), self.rng.clone_state())

    def catch_up(self, trained: "Mirrors") -> None:
        pass


@final
@validated
class WeightMirror(Rule):
    """Every `every` steps noise x goes through each matrix, and what comes out tells V what W is.

    Akrout et al. (2019), arXiv:1904.05391:  y = W x,  V ← V + rate · cov(y, x),  then V is rescaled to the norm of W;
    x are `samples` normal vectors, so that cov(y, x) is W in expectation.  A convolution's matrix has the patch it
    looks at as its input.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`); the noise goes through W alone, without
    bias and activation function; and V is rescaled to the norm of W, which the paper's rule does not read.
    Exact limit: V becomes W as the samples become many.
    """

    every: Annotated[int, Ge(1)] = 10
    samples: Annotated[int, Ge(2)] = 128
    rate: Annotated[float, Gt(0)] = 0.1
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "mirror"
    route: ClassVar[Route] = "layer"
    chance: ClassVar[Rule] = FeedbackAlignment(level="layer")

    def init(self, facts: Facts, rng: torch.Generator) -> Mirrors:
        return Mirrors(Backward(drawn(facts, rng)), seeded(rng))

    def feedback(self, state: Mirrors, units: Sequence[Matrix]) -> Matrix:
        return cast(state.backward.matrices, units)

    def update(self, state: Mirrors, signal: Signal) -> dict[str, Tensor]:
        if state.steps % self.every == 0:
            for name, w in weights_of(signal.units).items():
                v_oi, w_oi = state.backward.matrices[name].flatten(1), w.flatten(1)
                x_Si = torch.randn(self.samples, w_oi.shape[1], generator=state.rng).to(w)
                y_So = x_Si @ w_oi.mT
                v_oi.addmm_((y_So - y_So.mean(0)).mT, x_Si - x_Si.mean(0), alpha=self.rate / (self.samples - 1))
                v_oi.mul_(w.norm() / v_oi.norm().clamp_min(torch.finfo(v_oi.dtype).tiny))
        state.steps += 1
        return {}
