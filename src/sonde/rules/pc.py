"""Predictive coding: states that minimise an energy.  Equilibrium propagation shares the relaxation."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, final

from annotated_types import Ge, Gt
from torch import Tensor

from sonde.core.errors import SondeError
from sonde.core.validated import validated
from sonde.network import Network
from sonde.rules.rule import CreditScale, Evaluation, Facts, Nothing, Pair, Route, Rule, Signal


def relaxed(signal: Signal, beta: float, steps: int, rate: float) -> list[tuple[Evaluation, Tensor]]:
    """Descend E(h) = Σ_l ½‖h_{l+1} − unit_l(h_l)‖² + β·ℓ(readout(h_L), y) from the forward pass; h_0 stays fixed.

    Each step is h_l ← h_l − rate·∂E/∂h_l for all states at once, with ∂E/∂h_l = ε_l − J_lᵀ ε_{l+1} and
    ε_l = h_l − unit_{l−1}(h_{l−1}).  Returns ε_l of every state that has moved, with the unit that predicts it at the
    state below.  An error descends one unit at each step; a unit runs again only when its input has moved.
    Moves from the forward pass are summed by themselves: in float32, h_l would round small ones away.
    """
    free, units = signal.states, list(signal.passed)
    top = len(free) - 1
    moves: dict[int, Tensor] = {}
    errors: dict[int, Tensor] = {}
    for step in range(steps):
        slopes = {layer - 1: -units[layer].vjp(error) for layer, error in errors.items() if layer > 1}
        slopes[top] = beta * (signal.loss_gradient(free[top] + moves[top]) if step else signal.top_gradient)
        for layer, slope in slopes.items():
            moves[layer] = moves[layer] - rate * (slope + errors[layer]) if layer in moves else -rate * slope
            if layer < top:
                units[layer + 1] = signal.unit(layer, free[layer] + moves[layer])
        errors = {layer: move - (units[layer].output - free[layer]) for layer, move in moves.items()}
    return [(units[layer], error) for layer, error in errors.items()]


def with_embedding(pairs: Sequence[Pair], signal: Signal) -> list[Pair]:
    """The pairs, and what the embedding learns from: the credit of the first unit, carried back to h_0."""
    return [*(Pair(signal.passed[0], unit.vjp(a)) for unit, a in pairs if unit.layer == 1), *pairs]


@final
@validated
class PredictiveCoding(Rule):
    """Let the states minimise the sum of squared prediction errors and the loss; units then learn to predict them.

    Whittington & Bogacz (2017), doi:10.1162/NECO_a_00949:  the energy is
    E(h) = Σ_l ½‖h_{l+1} − unit_l(h_l)‖² + ℓ(readout(h_L), y).  It descends for `steps` steps of `rate` from the forward
    pass, to states h̃.  With ε_{l+1} = h̃_{l+1} − unit_l(h̃_l), unit l gets the gradient of −⟨unit_l(h̃_l), ε_{l+1}⟩, so
    a_{l+1} = −ε_{l+1}.  h_0 is fixed; the embedding gets a_0 = −J_0ᵀ ε_1.  The error reaches h_{L−k} at step k+1, as
    rateᵏ⁺¹ times the gradient, and grows in later steps.  So in L steps it reaches h_1, but in deep networks faintly.
    With `learn_at: arrival` each unit learns when the error arrives, one step after the unit above, and the states
    below have not moved: Z-IL, Song et al. (2020), arXiv:2103.04689.  With `depth_scale` each block adds its output
    times 1/√L, in the forward pass as well: µPC, Innocenti et al. (2025), arXiv:2505.13124.
    Not as in the paper: the readout is not a layer with states of its own; it gets the exact gradient at h_L of the
    forward pass.  Units are blocks with normalisation and skip connection.  Of µPC only the factor on the depth is
    used; widths keep the model's own initial weights.
    Exact limits: with `learn_at: arrival` and `rate` 1 it is backprop; at equilibrium it is when the error is small.
    """

    steps: Annotated[int, Ge(1)] = 8
    rate: Annotated[float, Gt(0)] = 0.2
    depth_scale: bool = False
    learn_at: Literal["equilibrium", "arrival"] = "equilibrium"
    credit_scale: CreditScale = "none"
    penalty: Annotated[float, Ge(0)] = 0.0

    needs: ClassVar[str] = "the weights in the backward pass, unit by unit; states that relax in several steps"
    route: ClassVar[Route] = "states"
    chance: ClassVar[None] = None
    first_options: ClassVar[tuple[str, ...]] = (
        *("steps", "rate", "depth_scale", "learn_at"),
        *("credit_scale", "penalty"),
    )

    @property
    def label(self) -> str:
        return "µPC" if self.depth_scale else "PC"

    def prepare(self, net: Network, facts: Facts) -> None:
        if not self.depth_scale:
            return
        if not net.residual:
            raise SondeError(
                "rule.depth_scale=true scales what a residual block adds to its input, and these blocks add nothing: "
                "choose a residual model, or leave it at false"
            )
        net.branch_scale = net.depth**-0.5

    def pairs(self, state: Nothing, signal: Signal) -> list[Pair]:
        if self.learn_at == "equilibrium":
            moved = relaxed(signal, 1.0, self.steps, self.rate)
            return with_embedding([Pair(unit, -error) for unit, error in moved], signal)
        found = [Pair(signal.passed[-1], self.rate * signal.top_gradient)]
        for below in reversed(signal.passed[:-1]):
            unit, a = found[-1]
            found.append(Pair(below, self.rate * unit.vjp(a)))
        return found
