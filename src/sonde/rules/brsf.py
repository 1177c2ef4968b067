"""Sign-concordant feedback with magnitudes that are random anew in every batch."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor

from sonde.core.validated import validated
from sonde.rules.fa import FeedbackAlignment
from sonde.rules.layers import Backward, cast, sizes, weights_of
from sonde.rules.rule import CreditScale, Facts, Matrix, Route, Rule, seeded


class DrawnMagnitudes:
    """The sizes of the magnitudes, and what they are drawn from."""

    def __init__(self, scale: Backward, rng: torch.Generator) -> None:
        self.scale, self.rng = scale, rng

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale.state_dict(), "rng": self.rng.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale.load_state_dict(state["scale"])
        self.rng.set_state(state["rng"])

    def double(self, device: torch.device) -> "DrawnMagnitudes":
        return DrawnMagnitudes(self.scale.double(device), self.rng.clone_state())

    def catch_up(self, trained: "DrawnMagnitudes") -> None:
        pass


@final
@validated
class BatchMagnitudes(Rule):
    """Backprop, of whose weight matrices only the signs are known on the way back; magnitudes are drawn at every step.

    Liao, Leibo & Poggio (2016), arXiv:1510.05067:  V = |M| ∘ sign(W), |M| uniform between 0 and √3·s, s the standard
    deviation of W's initial entries, so that V has the size of W's initial matrix.  Magnitudes have 15 bits.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`), and the first draw is discarded: the check
    of the products before training takes it.
    Exact limit: in expectation it is `usf`, times √3/2.
    """

    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "brSF"
    route: ClassVar[Route] = "layer"
    chance: ClassVar[Rule] = FeedbackAlignment(level="layer")

    def init(self, facts: Facts, rng: torch.Generator) -> DrawnMagnitudes:
        return DrawnMagnitudes(Backward(sizes(facts)), seeded(rng))

    def feedback(self, state: DrawnMagnitudes, units: Sequence[Matrix]) -> Matrix:
        weights, scale = weights_of(units), cast(state.scale.matrices, units)
        draw = Magnitudes(max((w.numel() for w in weights.values()), default=0), state.rng)
        return {name: w.sign().mul_(draw(w)).mul_(scale[name] * (math.sqrt(3) / MOST)) for name, w in weights.items()}


MOST = 2**15


class Magnitudes:
    """Whole numbers, uniform from 0 to `MOST`: four of every 64 random bits, since bits are what a draw costs.

    All draws are written to the same memory: what a call returns is good until the next.
    """

    def __init__(self, most: int, rng: torch.Generator) -> None:
        self.bits, self.rng = torch.empty(-(-most // 4), dtype=torch.int64), rng
        self.numbers = torch.empty(most)

    def __call__(self, like: Tensor) -> Tensor:
        count = like.numel()
        self.bits[: -(-count // 4)].random_(generator=self.rng)
        drawn = self.numbers[:count].copy_(self.bits.view(torch.int16)[:count]).abs_()
        return drawn.view(like.shape).to(like)
