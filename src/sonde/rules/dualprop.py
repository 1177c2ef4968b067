"""Dual propagation: two states a layer, whose mean is the activity and whose difference is the credit."""

from typing import Annotated, ClassVar, final

from annotated_types import Ge, Gt, Le

from sonde.core.validated import validated
from sonde.rules.rule import CreditScale, Nothing, Pair, Route, Rule, Signal


@final
@validated
class DualPropagation(Rule):
    """Give every layer two states, nudged apart from the top down; units learn from the difference.

    Høier, Staudt & Zach (2023), arXiv:2302.01228:  h⁺_l = unit(h̄_{l−1}) + α·J_lᵀΔ_{l+1} and
    h⁻_l = unit(h̄_{l−1}) − (1−α)·J_lᵀΔ_{l+1}, with Δ = h⁺ − h⁻ and h̄ = α·h⁺ + (1−α)·h⁻.  J_l is the derivative of unit l
    at h̄_l; at the top Δ_L = −β·∂ℓ/∂h_L.  One of the `passes` goes from the top to h_1; a further one begins with the
    means of the last.  Unit l learns at h̄_l from a_{l+1} = −Δ_{l+1}/β.
    Not as in the paper: a nudge acts on the output of a unit to first order.  In the paper it acts on the input of the
    activation, where a finite β also saturates.  The readout gets the exact gradient at h_L of the forward pass.
    Exact limits: β → 0 is backprop; with α = ½ the means do not move, and it is backprop for every β.
    """

    alpha: Annotated[float, Ge(0), Le(1)] = 0.5
    beta: Annotated[float, Gt(0)] = 0.1
    passes: Annotated[int, Ge(1)] = 1
    credit_scale: CreditScale = "none"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "dual propagation"
    needs: ClassVar[str] = "the weights in the backward pass, unit by unit; two states a layer"
    route: ClassVar[Route] = "states"
    chance: ClassVar[None] = None
    first_options: ClassVar[tuple[str, ...]] = (
        *("alpha", "beta", "passes"),
        *("credit_scale", "penalty"),
    )

    def pairs(self, state: Nothing, signal: Signal) -> list[Pair]:
        units, top, shift = list(signal.passed), signal.top_gradient, (2 * self.alpha - 1) * self.beta
        for _ in range(self.passes):
            credits = [top]
            for unit in reversed(units[1:]):
                credits.append(unit.vjp(credits[-1]))
            credits.reverse()
            if shift == 0:
                break
            mean = signal.states[0]
            for layer, a in enumerate(credits[1:]):
                units[layer + 1] = signal.unit(layer, mean)
                mean = units[layer + 1].output - shift * a
            top = signal.loss_gradient(mean)
        return [Pair(unit, a) for unit, a in zip(units, credits, strict=True)]
