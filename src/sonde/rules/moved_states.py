"""Rules that move the states: those that minimise an energy, and those with a second forward pass.

Predictive coding, equilibrium propagation and dual propagation; Forward-Forward and PEPITA.  N samples, C classes.
"""

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, final

import torch
import torch.nn.functional as F  # noqa: N812
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.validated import validated
from sonde.network import Network
from sonde.rules.rule import CreditScale, Evaluation, Facts, Nothing, Pair, Route, Rule, Signal
from sonde.rules.states import Matrices, RandomState, seeded


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


NEEDS_LABELS = "ff writes a label into the inputs: it needs a task with one of several labels per sample"


def with_label(x: Tensor, label_NC: Tensor) -> Tensor:
    """The inputs with a label written over the first C numbers of each sample."""
    marked = x.flatten(1).clone()
    marked[:, : label_NC.shape[-1]] = label_NC
    return marked.view_as(x)


class Neutral:
    """Writes the label 1/C of every class, which favours none."""

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def __call__(self, x: Tensor) -> Tensor:
        return with_label(x, x.new_full((1, self.classes), 1 / self.classes))


def normalised(h: Tensor) -> Tensor:
    """h/(RMS(h) + 1e-8), of each sample."""
    rms_N = h.flatten(1).square().mean(-1).sqrt() + 1e-8
    return h / rms_N.view(-1, *[1] * (h.ndim - 1))


def features(h: Tensor) -> int:
    """The axis of the features: the last one of vectors and tokens, the channels of maps."""
    return 1 if h.ndim == 4 else -1


def goodness(h: Tensor) -> Tensor:
    """G = Σ h² over the features, the mean of it over tokens or positions, of each sample."""
    return h.square().sum(features(h)).reshape(len(h), -1).mean(-1)


@final
@validated
class ForwardForward(Rule):
    """Let every unit make the squares of its output large for a true label and small for a wrong one.

    Hinton (2022), arXiv:2212.13345:  a label is written over the first C inputs.  It is the true one in the positive
    pass, and a wrong one that the rule draws in the negative pass.  With G = Σ h² over the d features of a state and
    θ = `threshold`, every state descends softplus(θd − G⁺) + softplus(G⁻ − θd).  G of tokens and maps is the mean over
    tokens or positions.  No gradient crosses a unit.  Units read h/RMS(h), which has lost the goodness of the unit
    below.  The prediction `goodness` is the class whose label gives the largest Σ_{l≥1} G_l, in C passes.  These sums
    are the output that loss and accuracy are measured with.  The prediction `readout` is the network's readout.  With
    both, the readout is trained on inputs with the neutral label 1/C.  The numbers that labels are written over are
    lost.  Probes see the network on neutral labels.
    Not as in the paper: wrong labels are drawn uniformly, not by how likely the network finds them.  There is no peer
    normalisation, and the readout reads the last state alone.  Blocks keep their skip connection and normalisation, so
    the input alone gives them a goodness of about d.
    Exact limit: for one layer the gradient is that of autograd for both passes.
    """

    threshold: float = 1.0
    prediction: Literal["goodness", "readout"] = "goodness"
    credit_scale: CreditScale = "none"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "FF"
    needs: ClassVar[str] = "labels among the inputs; a second and a third forward pass, C more to predict"
    route: ClassVar[Route] = "states"
    reads_top_gradient: ClassVar[bool] = False
    chance: ClassVar[None] = None
    undefined_credit: ClassVar[str] = "Forward-Forward descends a goodness of its own, not the loss"
    first_options: ClassVar[tuple[str, ...]] = ("threshold", "prediction", "credit_scale", "penalty")

    @property
    def owns_prediction(self) -> bool:
        return self.prediction == "goodness"

    def prepare(self, net: Network, facts: Facts) -> None:
        inputs, classes = math.prod(facts.input_shape), math.prod(facts.output_shape)
        if not facts.labels or len(facts.output_shape) != 1 or classes < 2:
            raise SondeError(NEEDS_LABELS)
        if not facts.real_inputs or inputs <= classes:
            raise SondeError(
                f"ff writes one of {classes} labels over the first inputs: it needs more than {classes} real numbers "
                "per sample"
            )
        net.entry, net.between = Neutral(classes), normalised

    def init(self, facts: Facts, rng: torch.Generator) -> RandomState:
        return RandomState(seeded(rng))

    def pairs(self, state: RandomState, signal: Signal) -> list[Pair]:
        classes = signal.output_NC.shape[-1]
        if signal.y.is_floating_point() or signal.y.ndim != 1:
            raise SondeError(NEEDS_LABELS)
        apart = torch.randint(1, classes, signal.y.shape, generator=state.rng).to(signal.y)
        found = []
        for label, sign in ((signal.y, 1.0), ((signal.y + apart) % classes, -1.0)):
            *units, _ = signal.run(with_label(signal.x, F.one_hot(label, classes).to(signal.x)))
            found += [Pair(unit, self._credit(unit, sign)) for unit in units]
        return found

    def _credit(self, unit: Evaluation, sign: float) -> Tensor:
        """∂/∂h of softplus(θd − G) for sign 1, of softplus(G − θd) for sign −1."""
        h = unit.output
        d = h.shape[features(h)]
        slope_N = -2 * sign * torch.sigmoid(sign * (self.threshold * d - goodness(h))) / (h[0].numel() // d)
        return slope_N.view(-1, *[1] * (h.ndim - 1)) * h

    def predict(self, net: Network, x: Tensor) -> Tensor:
        classes = net.entry.classes  # type: ignore[union-attr]
        labels_CC = torch.eye(classes, device=x.device, dtype=x.dtype)
        sums = []
        for label_C in labels_CC:
            states = net.run(with_label(x, label_C[None]), raw=True).states
            sums.append(torch.stack([goodness(h) for h in states[1:]]).sum(0))
        return torch.stack(sums, dim=-1)


@final
@validated
class Pepita(Rule):
    """Run the network again on inputs that the output error has changed; units learn from the change of their output.

    Dellaferrera & Kreiman (2022), arXiv:2201.11665:  h^err are the states on x + F e, F ∈ R^{d_in×C} fixed with entries
    N(0, σ²), σ = `scale`·2√(6/d_in).  Unit l gets the gradient of ⟨unit_l(h^err_l), h_{l+1} − h^err_{l+1}⟩, so
    a_l = h_l − h^err_l; the readout that of ⟨readout(h^err_L), e⟩.  Learning turns F and ∂z/∂x against each other.
    Not as in the paper: the gradient goes through the unit.  The paper leaves out the derivative of the activation, as
    `derivative: none` does for units of one linear map and an activation.
    Exact limits: for F → 0, a_l is −(∂h_l/∂x) F e; on a linear network with F = −(∂z/∂x)ᵀ it lowers the loss.
    """

    scale: Annotated[float, Gt(0)] = 0.05
    derivative: Literal["unit", "none"] = "unit"
    credit_scale: CreditScale = "none"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "PEPITA"
    needs: ClassVar[str] = "the output error; a fixed matrix to the inputs; a second forward pass"
    route: ClassVar[Route] = "states"
    reads_top_gradient: ClassVar[bool] = False
    first_options: ClassVar[tuple[str, ...]] = ("scale", "derivative", "credit_scale", "penalty")

    def prepare(self, net: Network, facts: Facts) -> None:
        if not facts.real_inputs:
            raise SondeError("pepita adds the error to the inputs, and these are integers: choose another rule")
        if self.derivative == "unit":
            return
        for name, unit in [("the embedding", net.embed), *((net.name_of(i), b) for i, b in enumerate(net.blocks))]:
            maps = [module for module in unit.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
            inside = sum(p.numel() for module in maps for p in module.parameters())
            if len(maps) > 1 or inside != sum(p.numel() for p in unit.parameters()):
                raise SondeError(
                    f"rule.derivative=none is for units of one linear map and an activation, and {name} has more: "
                    "leave it at unit"
                )

    def init(self, facts: Facts, rng: torch.Generator) -> Matrices:
        inputs = math.prod(facts.input_shape)
        f = torch.randn(inputs, math.prod(facts.output_shape), generator=rng) * (self.scale * 2 * math.sqrt(6 / inputs))
        return Matrices([f.to(facts.device, facts.dtype)])

    def pairs(self, state: Matrices, signal: Signal) -> list[Pair]:
        (f_iC,) = state.matrices
        e_NC = signal.error_NC
        x_err = signal.x + (e_NC @ f_iC.mT.to(e_NC)).view_as(signal.x)
        *units, readout = signal.run(x_err, linear=self.derivative == "none")
        changes = [h - above.input for h, above in zip(signal.states, [*units[1:], readout], strict=True)]
        for unit, change in zip(units, changes, strict=True):
            if unit.node.shape != change.shape:
                raise SondeError(
                    f"rule.derivative=none: what computes h_{unit.layer} changes the shape after its linear map, as "
                    "pooling does: leave it at unit"
                )
        return [*map(Pair, units, changes), Pair(readout, signal.error)]
