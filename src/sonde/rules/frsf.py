"""Sign-concordant feedback with fixed random magnitudes."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge

from sonde.core.validated import validated
from sonde.rules.fa import FeedbackAlignment
from sonde.rules.layers import Backward, cast, drawn, weights_of
from sonde.rules.rule import CreditScale, Facts, Matrix, Route, Rule


@final
@validated
class FixedMagnitudes(Rule):
    """Backprop, of whose weight matrices only the signs are known on the way back; the magnitudes are random and stay.

    Liao, Leibo & Poggio (2016), arXiv:1510.05067:  V = |M| ∘ sign(W), M fixed and normal, with the size
    of W's initial entries.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`).
    Exact limit: with |M| = |W| it is backprop.
    """

    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "frSF"
    route: ClassVar[Route] = "layer"
    chance: ClassVar[Rule] = FeedbackAlignment(level="layer")

    def init(self, facts: Facts, rng: torch.Generator) -> Backward:
        return Backward({name: m.abs_() for name, m in drawn(facts, rng).items()})

    def feedback(self, state: Backward, units: Sequence[Matrix]) -> Matrix:
        magnitudes = cast(state.matrices, units)
        return {name: w.sign().mul_(magnitudes[name]) for name, w in weights_of(units).items()}
