"""Sign-concordant feedback: the backward pass uses the signs of the weights, with other magnitudes."""

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor

from sonde.core.validated import validated
from sonde.rules.fa import FeedbackAlignment
from sonde.rules.rule import CreditScale, Facts, Matrix, Route, Rule
from sonde.rules.states import BackwardMatrices, StoredState, cast_like, drawn, seeded, sizes, weights_of


@final
@validated
class UniformSigns(Rule):
    """Backprop that uses only the signs of the weights in the backward pass.  Also known as sign symmetry.

    Liao, Leibo & Poggio (2016), arXiv:1510.05067:  V = s·sign(W) replaces every weight matrix W of the blocks; s is
    the standard deviation of W's initial entries.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`).
    Exact limit: if all weights are ±s it is backprop.
    """

    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "uSF"
    needs: ClassVar[str] = "a backward pass through every block; the signs of the weights"
    route: ClassVar[Route] = "layer"
    chance: ClassVar[Rule] = FeedbackAlignment(level="layer")

    def init(self, facts: Facts, rng: torch.Generator) -> BackwardMatrices:
        return BackwardMatrices(sizes(facts))

    def feedback(self, state: BackwardMatrices, units: Sequence[Matrix]) -> Matrix:
        scale = cast_like(state.matrices, units)
        return {name: w.sign().mul_(scale[name]) for name, w in weights_of(units).items()}


@final
@validated
class FixedMagnitudes(Rule):
    """Backprop that uses the signs of the weights and fixed random magnitudes in the backward pass.

    Liao, Leibo & Poggio (2016), arXiv:1510.05067:  V = |M| ∘ sign(W); M is drawn once, normal, with the size of W's
    initial entries.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`).
    Exact limit: with |M| = |W| it is backprop.
    """

    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "frSF"
    needs: ClassVar[str] = "a backward pass through every block; the signs of the weights, fixed random magnitudes"
    route: ClassVar[Route] = "layer"
    chance: ClassVar[Rule] = FeedbackAlignment(level="layer")

    def init(self, facts: Facts, rng: torch.Generator) -> BackwardMatrices:
        return BackwardMatrices({name: m.abs_() for name, m in drawn(facts, rng).items()})

    def feedback(self, state: BackwardMatrices, units: Sequence[Matrix]) -> Matrix:
        magnitudes = cast_like(state.matrices, units)
        return {name: w.sign().mul_(magnitudes[name]) for name, w in weights_of(units).items()}


class DrawnMagnitudes(StoredState):
    """The sizes of the magnitudes, and the generator they are drawn from."""

    parts: ClassVar = {"scale": "scale", "rng": "rng"}

    def __init__(self, scale: BackwardMatrices, rng: torch.Generator) -> None:
        self.scale, self.rng = scale, rng


@final
@validated
class BatchMagnitudes(Rule):
    """Backprop that uses the signs of the weights and draws new magnitudes at every step for the backward pass.

    Liao, Leibo & Poggio (2016), arXiv:1510.05067:  V = |M| ∘ sign(W); |M| is uniform between 0 and √3·s, and s is the
    standard deviation of W's initial entries.  So V has the size of W's initial matrix.  Magnitudes have 15 bits.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`), and the first draw is discarded, because
    the check of the products before training takes it.
    Exact limit: in expectation it is `usf`, times √3/2.
    """

    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "brSF"
    needs: ClassVar[str] = (
        "a backward pass through every block; the signs of the weights, magnitudes drawn at every step"
    )
    route: ClassVar[Route] = "layer"
    chance: ClassVar[Rule] = FeedbackAlignment(level="layer")

    def init(self, facts: Facts, rng: torch.Generator) -> DrawnMagnitudes:
        return DrawnMagnitudes(BackwardMatrices(sizes(facts)), seeded(rng))

    def feedback(self, state: DrawnMagnitudes, units: Sequence[Matrix]) -> Matrix:
        weights, scale = weights_of(units), cast_like(state.scale.matrices, units)
        draw = Magnitudes(max((w.numel() for w in weights.values()), default=0), state.rng)
        to_size = math.sqrt(3) / LARGEST_MAGNITUDE
        return {name: w.sign().mul_(draw(w)).mul_(scale[name] * to_size) for name, w in weights.items()}


LARGEST_MAGNITUDE = 2**15


class Magnitudes:
    """Draws integers, uniform from 0 to `LARGEST_MAGNITUDE`, four from every 64 random bits.

    All draws are written to the same memory: the result of a call is valid until the next call.
    """

    def __init__(self, most: int, rng: torch.Generator) -> None:
        self.bits, self.rng = torch.empty(-(-most // 4), dtype=torch.int64), rng
        self.numbers = torch.empty(most)

    def __call__(self, like: Tensor) -> Tensor:
        count = like.numel()
        self.bits[: -(-count // 4)].random_(generator=self.rng)
        drawn = self.numbers[:count].copy_(self.bits.view(torch.int16)[:count]).abs_()
        return drawn.view(like.shape).to(like)
