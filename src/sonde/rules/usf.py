"""Uniform sign-concordant feedback, known as sign symmetry."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge

from sonde.core.validated import validated
from sonde.rules.fa import FeedbackAlignment
from sonde.rules.layers import Backward, cast, sizes, weights_of
from sonde.rules.rule import CreditScale, Facts, Matrix, Route, Rule


@final
@validated
class UniformSigns(Rule):
    """Backprop, of whose weight matrices only the signs are known on the way back.

    Liao, Leibo & Poggio (2016), arXiv:1510.05067:  V = s·sign(W) in place of every weight matrix W of the blocks, s
    the standard deviation of W's initial entries.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`).
    Exact limit: with weights that are all ±s it is backprop.
    """

    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "uSF"
    route: ClassVar[Route] = "layer"
    chance: ClassVar[Rule] = FeedbackAlignment(level="layer")

    def init(self, facts: Facts, rng: torch.Generator) -> Backward:
        return Backward(sizes(facts))

    def feedback(self, state: Backward, units: Sequence[Matrix]) -> Matrix:
        scale = cast(state.matrices, units)
        return {name: w.sign().mul_(scale[name]) for name, w in weights_of(units).items()}
