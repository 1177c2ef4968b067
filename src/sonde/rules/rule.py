"""The interface of a learning rule: its configuration, the state it owns, and what it sees of a batch.

N samples, T tokens, d width, C outputs, L blocks.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.validated import validated
from sonde.network import FLAT, READER, Network, Pooling
from sonde.network.losses import Loss
from sonde.rules.states import Matrix as Matrix
from sonde.rules.states import Nothing as Nothing

CreditScale = Literal["rms", "none"]
CreditAt = Literal["output", "input"]

Route = Literal["global", "local", "states", "layer", "frozen"]
"""How credit reaches the blocks: see `Rule.route`."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a rule knows about the network and the run before the first step."""

    shapes: Sequence[tuple[int, ...]]  # of one sample's h_0 … h_L
    input_shape: tuple[int, ...] = ()  # of one sample's x
    real_inputs: bool = True  # whether x are floating-point numbers; tokens are integers
    labels: bool = True  # whether the targets are labels; True for a function of (output, y), which does not tell
    output_shape: tuple[int, ...]  # of one sample's output
    steps: int  # optimiser steps in the whole run
    device: torch.device
    dtype: torch.dtype
    pooling: Pooling = FLAT
    units: Sequence[Matrix] = field(default_factory=list)  # initial weights, for a rule of the route `layer`
    names: Sequence[str] = field(default_factory=list)  # of the units, for messages

    reader = READER

    @property
    def transitions(self) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
        """The name of every unit, and the shapes of its input and output states."""
        names = self.names or [f"block {layer}" for layer in range(len(self.shapes) - 1)]
        for name, (below, above) in zip(names, pairwise(self.shapes), strict=True):
            yield name, below, above

    @property
    def outputs(self) -> int:
        """The size of a sample's output; if every token has an output, the size of one token's output."""
        return math.prod(self.output_shape[-1:] if self.by_token else self.output_shape)

    @property
    def by_token(self) -> bool:
        """Whether every token of every state has its own output."""
        tokens = {shape[0] if len(shape) == 2 else None for shape in self.shapes}
        return len(self.output_shape) == 2 and tokens == {self.output_shape[0]}


class Evaluation:
    """A unit at one input: its output there, and its derivative.

    `layer` is the number of the state that the unit computes: the embedding computes h_0, block l computes h_{l+1}, and
    the readout, as number L + 1, the output.
    """

    def __init__(self, layer: int, node: Tensor, leaf: Tensor) -> None:
        self.layer, self.node, self.leaf = layer, node, leaf

    @cached_property
    def output(self) -> Tensor:
        """The output, detached from the graph."""
        return self.node.detach()

    @property
    def input(self) -> Tensor:
        """The input, detached from the graph."""
        return self.leaf.detach()

    def vjp(self, a: Tensor) -> Tensor:
        """Compute aᵀ ∂output/∂input.  The unit does not run again."""
        (below,) = torch.autograd.grad(self.node, self.leaf, a, retain_graph=True, materialize_grads=True)
        return below


class Pair(NamedTuple):
    """What a unit learns from: it gets the gradient of ⟨its output at this input, credit⟩/N."""

    unit: Evaluation
    credit: Tensor


def summed(pairs: Sequence[Pair], states: Sequence[Tensor]) -> list[Tensor]:
    """The sum of the credits of every state, over pairs; zero where there is none."""
    found: list[Tensor | None] = [None] * len(states)
    for unit, a in pairs:
        if unit.layer < len(states):
            before = found[unit.layer]
            found[unit.layer] = a if before is None else before + a
    return [torch.zeros_like(h) if a is None else a for a, h in zip(found, states, strict=True)]


class Signal:
    """What a rule can read of one batch.  All tensors are detached from the graph."""

    reader = READER

    def __init__(
        self,
        *,
        states: Sequence[Tensor],
        output_NC: Tensor,
        y: Tensor,
        loss: Loss,
        readout: Callable[[Tensor], Tensor],
        gradients: Callable[[], Sequence[Tensor]],
        vjp: Callable[[int, Tensor, Matrix], Tensor] | None = None,
        jvp: Callable[[Sequence[Tensor]], Tensor] | None = None,
        top_from: Callable[[int, Tensor], Tensor] | None = None,
        units: Callable[[], Sequence[Matrix]] = list,
        gradients_of_units: Callable[[], Sequence[Matrix]] = list,
        pooling: Pooling = FLAT,
        top_gradient: Tensor | None = None,
        x: Tensor | None = None,
        passed: Sequence[Evaluation] = (),
        unit: Callable[[int, Tensor], Evaluation] | None = None,
        run: Callable[[Tensor, bool], list[Evaluation]] | None = None,
    ) -> None:
        self.states = states  # h_0 … h_L
        self.output_NC = output_NC
        self.y = y
        self.loss = loss
        self.readout = readout  # h_L, or several of them one after the other, to the output
        self.pooling = pooling
        self._units = units
        self._gradients_of_units = gradients_of_units
        self._gradients = gradients
        self._vjp = vjp
        self._jvp = jvp
        self._top_from = top_from
        self._top = top_gradient
        self._x = x
        self._passed = passed
        self._unit = unit
        self._run = run

    @cached_property
    def error(self) -> Tensor:
        """e = ∂ℓ_i/∂z_i, in the shape of the output."""
        return self.loss.error(self.output_NC, self.y)

    @property
    def error_NC(self) -> Tensor:
        """e, flattened to one vector for each sample."""
        return self.error.flatten(1)

    @cached_property
    def targets(self) -> Tensor:
        """y in the shape of the output; labels become one-hot vectors."""
        if self.y.is_floating_point():
            if self.y.shape != self.output_NC.shape:
                raise SondeError(
                    f"outputs of shape {tuple(self.output_NC.shape)} have targets of shape {tuple(self.y.shape)}: a "
                    f"rule that sends targets needs both alike, or labels"
                )
            return self.y
        return F.one_hot(self.y, self.output_NC.shape[-1]).to(self.output_NC.dtype)

    @property
    def gradients(self) -> Sequence[Tensor]:
        """g_0 … g_L: the exact gradient at every state, for each sample."""
        return self._gradients()

    @property
    def top_gradient(self) -> Tensor:
        """g_L: the exact gradient at the last state, for each sample."""
        return self.gradients[-1] if self._top is None else self._top

    @cached_property
    def units(self) -> Sequence[Matrix]:
        """The weight matrices of every unit, by the names of their parameters.  Do not change them."""
        return self._units()

    @property
    def gradients_of_units(self) -> Sequence[Matrix]:
        """The gradient of each weight matrix in this step, as the rule made it; available in `update`."""
        return self._gradients_of_units()

    def vjp(self, layer: int, a: Tensor, weights: Matrix | None = None) -> Tensor:
        """Compute aᵀ ∂h_{l+1}/∂h_l: propagate credit at h_{l+1} back through unit l to h_l.

        The matrices in `weights` replace the unit's own in every product that gives the gradient at a layer's input;
        states and derivatives of activations stay the same.  This runs the unit again.
        """
        assert self._vjp is not None, "this signal was made without vjp"
        return self._vjp(layer, a, weights or {})

    def jvp(self, directions: Sequence[Tensor]) -> Tensor:
        """Compute Σ_l (∂z/∂h_l) v_l for each sample in one forward-mode pass; it has the shape of the output."""
        assert self._jvp is not None, "this signal was made without jvp"
        return self._jvp(directions)

    def top_from(self, layer: int, h: Tensor) -> Tensor:
        """Compute the last state h_L from another state h at layer l."""
        assert self._top_from is not None, "this signal was made without top_from"
        return self._top_from(layer, h)

    @property
    def x(self) -> Tensor:
        """The inputs of the batch."""
        assert self._x is not None, "this signal was made without x"
        return self._x

    @cached_property
    def passed(self) -> Sequence[Evaluation]:
        """The embedding and the units in the forward pass; number l computed h_l."""
        return self._passed or [
            Evaluation(0, self.states[0], self.states[0]),
            *(self.unit(layer, h) for layer, h in enumerate(self.states[:-1])),
        ]

    def unit(self, layer: int, h: Tensor) -> Evaluation:
        """Run unit l at another state h, with the random numbers of the forward pass and without side effects."""
        assert self._unit is not None, "this signal was made without unit"
        return self._unit(layer, h)

    def run(self, x: Tensor, *, linear: bool = False) -> list[Evaluation]:
        """Run the network on other inputs of the same shape: embedding, units and readout, cut from each other.

        With `linear` the output of an embedding or unit is that of its only linear map, before the activation.
        """
        assert self._run is not None, "this signal was made without run"
        return self._run(x, linear)

    def loss_gradient(self, h: Tensor) -> Tensor:
        """Compute ∂ℓ/∂h_L at another last state, for each sample."""
        with torch.enable_grad():
            leaf = h.detach().requires_grad_()
            (g,) = torch.autograd.grad(self.loss.per_sample(self.readout(leaf), self.y).sum(), leaf)
        return g


class RuleState(Protocol):
    """Everything a rule owns, as a tree of tensors and plain values.  `StoredState` implements it."""

    def state_dict(self) -> dict[str, Any]:
        """Return what is stored with every epoch; a run resumed from it continues with the same bits."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...

    def double(self, device: torch.device) -> "RuleState":
        """Return a float64 copy to compute credits with; using the copy does not change this state."""
        ...

    def catch_up(self, trained: Any) -> None:
        """Move to the step of `trained` but keep what was drawn here, so the null is measured at the same step."""
        ...


class Rule(Protocol):
    """A rule's configuration.  Credit a_l replaces the gradient +g_l: it points uphill.

    Every method has a default: a subclass without methods owns nothing, learns nothing, and sends the exact gradient.
    Most rules define `credits`, and `init` if they own a state.  A rule with the route `layer` defines `feedback`
    instead, one with the route `states` defines `pairs`.

    A run's id covers all options of the rule.  To add an option later without changing the ids of earlier runs, set
    `first_options` to the names of the options that the rule was first released with.
    """

    first_options: ClassVar[tuple[str, ...] | None] = None

    @property
    def needs(self) -> str:
        """What the rule needs to compute its credit, in a few words, for the table of rules in the documentation."""
        return "–"

    @property
    def label(self) -> str:
        """The rule's name in figures and tables."""
        return type(self).__name__

    @property
    def route(self) -> Route:
        """How credit reaches the blocks.

        `local`: the graph is cut between blocks, and each block gets the credit that `credits` returns.  `states`: the
        same with inputs that the rule chooses: each unit gets the pairs of input and credit that `pairs` returns.
        `layer`: automatic differentiation with `feedback` in place of the weight matrices.  `global`: automatic
        differentiation.  `frozen`: automatic differentiation to the embedding; the blocks are not trained.
        """
        return "local"

    @property
    def reads_top_gradient(self) -> bool:
        """Whether `credits` uses g_L.  If not, g_L is not computed."""
        return True

    @property
    def credit_scale(self) -> CreditScale:
        """`rms`: blocks learn from a/(RMS(a) + 1e-6), with the RMS over the batch; `none`: from a.

        The default `rms` is Sonde's own; the rules' papers do not divide.
        """
        return "rms"

    @property
    def credit_at(self) -> CreditAt:
        """Which credit block l learns from: that of its `output` state, a_{l+1}, or that of its `input` state, a_l."""
        return "output"

    @property
    def penalty(self) -> float:
        """λ of the loss's second term, λ Σ_l mean_i ‖f_l(h_l)‖², f_l what block l adds to the stream."""
        return 0.0

    @property
    def chance(self) -> "Rule | None":
        """The rule that gives the null: its state is drawn again, and its credit is measured.  None: random vectors.

        By default this is the rule itself.  A rule whose credit is good for any draw names another rule whose
        matrices know nothing of the weights.
        """
        return self

    @property
    def undefined_credit(self) -> str | None:
        """Why the credit does not stand in for the gradient, so that probes of credit are undefined; None: it does."""
        return None

    def prepare(self, net: Network, facts: Facts) -> None:
        """Change how the network computes its states, for a rule that needs it; called once, before `init`."""
        return

    @property
    def owns_prediction(self) -> bool:
        """Whether accuracy and loss are measured with `predict`, not with the network's output."""
        return False

    def predict(self, net: Network, x: Tensor) -> Tensor:
        """Return the output that accuracy and loss are measured with, for a rule that owns the prediction."""
        output: Tensor = net(x)
        return output

    def init(self, facts: Facts, rng: torch.Generator) -> RuleState:
        """Make the state that the rule owns, before the first step."""
        return Nothing()

    def credits(self, state: Any, signal: Signal) -> list[Tensor]:
        """Return a_0 … a_L of a batch, for each sample, before normalisation.

        By default a_L = g_L is propagated back through the units, with `feedback` in place of their matrices.  For a
        rule of the route `states`, a_l is the sum over the pairs of the unit that computes h_l.
        """
        if self.route == "states":
            return summed(self.pairs(state, signal), signal.states)
        weights = self.feedback(state, signal.units)
        credits = [signal.top_gradient]
        for layer in reversed(range(len(signal.states) - 1)):
            credits.append(signal.vjp(layer, credits[-1], weights))
        return credits[::-1]

    def pairs(self, state: Any, signal: Signal) -> list[Pair]:
        """Return what the units learn from, for a rule of the route `states`; a unit may have several pairs, or none.

        The readout gets the exact gradient at h_L of the forward pass, unless a pair names it.  By default units learn
        at the states of the forward pass, from the exact gradient.
        """
        credits = [signal.top_gradient]
        for unit in reversed(signal.passed[1:]):
            credits.append(unit.vjp(credits[-1]))
        return [Pair(unit, a) for unit, a in zip(signal.passed, reversed(credits), strict=True)]

    def feedback(self, state: Any, units: Sequence[Matrix]) -> Matrix:
        """Return V for weight matrices of the units, by the same names; a matrix without V is used itself."""
        return {}

    def update(self, state: Any, signal: Signal) -> dict[str, Tensor]:
        """Train what the rule owns on the batch; return the values to log, on the device."""
        return {}

    def followers(self, state: Any) -> list[nn.Parameter]:
        """Return parameters of the state that the network's optimiser updates; `update` sets their gradients."""
        return []


@validated
class LocalRule(Rule):
    """A rule that gives every state a credit; each unit learns from one of them.

    With `credit_at: output` block l descends along ⟨f_l, a_{l+1}⟩, the credit of its output state.  With `input` it
    descends along ⟨f_l, a_l⟩, the credit of its input state; this needs states of one shape, and no block learns from
    a_L.  The embedding learns from a_0 in both cases, and the credits are the same.
    """

    credit_at: CreditAt = "output"
