"""Equilibrium propagation: the difference between two states that the loss has nudged apart."""

from typing import Annotated, ClassVar, final

from annotated_types import Ge, Gt

from sonde.core.validated import validated
from sonde.rules.pc import relaxed, with_embedding
from sonde.rules.rule import CreditScale, Nothing, Pair, Route, Rule, Signal


@final
@validated
class EquilibriumPropagation(Rule):
    """Nudge the states towards a smaller and towards a larger loss; units learn from the difference.

    Scellier & Bengio (2017), arXiv:1602.05179, with the two nudges of Laborieux et al. (2021), arXiv:2006.03824:  the
    energy is E(h) = Σ_l ½‖h_{l+1} − unit_l(h_l)‖² + β·ℓ(readout(h_L), y).  It descends for `steps` steps of `rate` from
    the forward pass, once with +β and once with −β.  With ε_{l+1} = h_{l+1} − unit_l(h_l), unit l gets the gradient of
    ⟨unit_l(h⁻_l), ε⁻_{l+1}⟩/2β − ⟨unit_l(h⁺_l), ε⁺_{l+1}⟩/2β.  With `one_sided` it is −⟨unit_l(h⁺_l), ε⁺_{l+1}⟩/β
    alone.  The forward pass is the free state, where E is least for β = 0.
    Not as in the paper: the energy is that of a feedforward chain, after Millidge et al. (2022), arXiv:2206.02629, not
    of a Hopfield network with symmetric weights.  So no steps are needed to find the free state.  The readout gets the
    exact gradient at h_L of the forward pass.
    In float32 a smaller `beta` or `rate` costs digits: after k steps ε is of the order β·rateᵏ·‖g‖, and differences of
    states below 10⁻⁷·‖h‖ are rounding.
    Exact limit: at equilibrium, β → 0 is backprop; the error is O(β²), with `one_sided` O(β).
    """

    beta: Annotated[float, Gt(0)] = 1.0
    steps: Annotated[int, Ge(1)] = 8
    rate: Annotated[float, Gt(0)] = 0.1
    one_sided: bool = False
    credit_scale: CreditScale = "none"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "EP"
    needs: ClassVar[str] = "the weights in the backward pass, unit by unit; states that relax twice"
    route: ClassVar[Route] = "states"
    chance: ClassVar[None] = None
    first_options: ClassVar[tuple[str, ...]] = (
        *("beta", "steps", "rate", "one_sided"),
        *("credit_scale", "penalty"),
    )

    def pairs(self, state: Nothing, signal: Signal) -> list[Pair]:
        nudges = [self.beta] if self.one_sided else [self.beta, -self.beta]
        pairs = [
            Pair(unit, error / (-beta * len(nudges)))
            for beta in nudges
            for unit, error in relaxed(signal, beta, self.steps, self.rate)
        ]
        return with_embedding(pairs, signal)
