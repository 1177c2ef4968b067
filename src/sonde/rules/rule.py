"""What a learning rule is: it owns a state, names a credit for every hidden state, and may learn to do it better.

N samples, T tokens, d width, C outputs, L blocks.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.validated import validated
from sonde.network.losses import Loss
from sonde.network.pooling import FLAT, Pooling

CreditScale = Literal["rms", "none"]
CreditAt = Literal["output", "input"]

# How credit reaches the blocks: by automatic differentiation across all of them; at each cut, as the rule says; by
# automatic differentiation with other matrices on the way back; or across all of them to the embedding, the blocks
# themselves staying as they are.
Route = Literal["global", "local", "layer", "frozen"]

Matrix = Mapping[str, Tensor]  # weight matrices by the names of their parameters


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a rule must know of network and run before it starts."""

    shapes: Sequence[tuple[int, ...]]  # of one sample's h_0 … h_L
    output_shape: tuple[int, ...]  # of one sample's output
    steps: int  # optimiser steps in the whole run
    device: torch.device
    dtype: torch.dtype
    reader: Pooling = FLAT
    units: Sequence[Matrix] = field(default_factory=list)  # initial weights, for a rule of the route `layer`
    names: Sequence[str] = field(default_factory=list)  # of the units, for messages

    @property
    def transitions(self) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
        """The name of every unit, and the shapes it leads from and to."""
        names = self.names or [f"block {layer}" for layer in range(len(self.shapes) - 1)]
        for name, (below, above) in zip(names, pairwise(self.shapes), strict=True):
            yield name, below, above

    @property
    def outputs(self) -> int:
        """How many numbers the output of a sample is; of an output for each token, those of one token."""
        return math.prod(self.output_shape[-1:] if self.by_token else self.output_shape)

    @property
    def by_token(self) -> bool:
        """Whether every token of every state has an output of its own."""
        tokens = {shape[0] if len(shape) == 2 else None for shape in self.shapes}
        return len(self.output_shape) == 2 and tokens == {self.output_shape[0]}


class Signal:
    """What a rule may look at in one batch; everything is cut from the graph."""

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
        reader: Pooling = FLAT,
        top_gradient: Tensor | None = None,
    ) -> None:
        self.states = states  # h_0 … h_L
        self.output_NC = output_NC
        self.y = y
        self.loss = loss
        self.readout = readout  # h_L, or several of them one after the other, to the output
        self.reader = reader
        self._units = units
        self._gradients_of_units = gradients_of_units
        self._gradients = gradients
        self._vjp = vjp
        self._jvp = jvp
        self._top_from = top_from
        self._top = top_gradient

    @cached_property
    def error(self) -> Tensor:
        """e = ∂ℓ_i/∂z_i, in the shape of the output."""
        return self.loss.error(self.output_NC, self.y)

    @property
    def error_NC(self) -> Tensor:
        """e with all numbers of a sample's output in a row."""
        return self.error.flatten(1)

    @cached_property
    def targets(self) -> Tensor:
        """y in the shape of the output: of labels, 1 at the label and 0 elsewhere."""
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
        """g_0 … g_L, per sample: the exact gradient at every state."""
        return self._gradients()

    @property
    def top_gradient(self) -> Tensor:
        """g_L, per sample."""
        return self.gradients[-1] if self._top is None else self._top

    @cached_property
    def units(self) -> Sequence[Matrix]:
        """The weight matrices of every unit, by the names of their parameters: to be read, not to be written to."""
        return self._units()

    @property
    def gradients_of_units(self) -> Sequence[Matrix]:
        """What the rule made the gradient of each matrix in this step; known in `update`."""
        return self._gradients_of_units()

    def vjp(self, layer: int, a: Tensor, weights: Matrix | None = None) -> Tensor:
        """aᵀ ∂h_{l+1}/∂h_l: credit at h_{l+1} carried through unit l to h_l.

        With `weights`, the matrices named there stand in for the unit's own in every product that gives the gradient
        at a layer's input; states and the derivatives of activations stay.  The unit is run again for it.
        """
        assert self._vjp is not None, "nobody said how to run a unit again"
        return self._vjp(layer, a, weights or {})

    def jvp(self, directions: Sequence[Tensor]) -> Tensor:
        """Σ_l (∂z/∂h_l) v_l of each sample, in the shape of the output: one forward-mode pass through the units."""
        assert self._jvp is not None, "nobody said how to run the units again"
        return self._jvp(directions)

    def top_from(self, layer: int, h: Tensor) -> Tensor:
        """h_L, had unit l been given another state h_l."""
        assert self._top_from is not None, "nobody said how to run the units again"
        return self._top_from(layer, h)


class RuleState(Protocol):
    """Everything a rule owns, as a tree of tensors and plain values."""

    def state_dict(self) -> dict[str, Any]:
        """What has to be stored to go on from here with the same bits."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        ...

    def double(self, device: torch.device) -> "RuleState":
        """A float64 copy to compute credits with; nothing done to it reaches this state."""
        ...

    def catch_up(self, trained: Any) -> None:
        """Stand at the step where `trained` stands, with what was drawn here: chance answers as the rule would."""
        ...


class Rule(Protocol):
    """A rule's configuration.  Credit a_l stands in for +g_l: it points uphill.

    A class that derives from it has everything said already: it owns nothing, learns nothing, and sends the exact
    gradient.  Most rules say `credits`, and `init` where they own something.  A rule of the route `layer` says
    `feedback` instead.
    """

    @property
    def label(self) -> str:
        """What it is called in figures and tables."""
        return type(self).__name__

    @property
    def route(self) -> Route:
        """How credit reaches the blocks.

        `local`: at each state, as `credits` says.  `layer`: by automatic differentiation with `feedback` in place of
        the weight matrices.  `global`: by automatic differentiation.  `frozen`: across the blocks to the embedding.
        """
        return "local"

    @property
    def reads_top_gradient(self) -> bool:
        """Whether `credits` looks at g_L; where it does not, g_L is not computed."""
        return True

    @property
    def credit_scale(self) -> CreditScale:
        """`rms`: blocks are told a/(RMS(a) + 1e-6), RMS over the batch; `none`: a as it is.

        The default `rms` is Sonde's: the papers of the rules do not divide.
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
        """The rule whose state, drawn anew, sends what chance would in this one's place; None: random vectors.

        By default the rule itself.  One whose credit is good whatever it draws names another, which draws blindly.
        """
        return self

    def init(self, facts: Facts, rng: torch.Generator) -> RuleState:
        """What the rule owns, before the first step."""
        return Nothing()

    def credits(self, state: Any, signal: Signal) -> list[Tensor]:
        """a_0 … a_L of a batch, per sample, before normalisation.

        By default a_L = g_L is carried down from unit to unit, with `feedback` in place of the units' matrices.
        """
        weights = self.feedback(state, signal.units)
        credits = [signal.top_gradient]
        for layer in reversed(range(len(signal.states) - 1)):
            credits.append(signal.vjp(layer, credits[-1], weights))
        return credits[::-1]

    def feedback(self, state: Any, units: Sequence[Matrix]) -> Matrix:
        """V for the weight matrices of the units, by the same names; what is not named goes back through itself."""
        return {}

    def update(self, state: Any, signal: Signal) -> dict[str, Tensor]:
        """Learn from the batch what the rule learns, and return what it logs, still on the device."""
        return {}

    def followers(self, state: Any) -> list[nn.Parameter]:
        """What of the state the network's optimiser changes too; `update` gives it its gradient."""
        return []


@validated
class LocalRule(Rule):
    """A rule that names a credit for every state; each unit learns from one of them.

    With `credit_at: output` block l descends along ⟨f_l, a_{l+1}⟩, the credit of the state it makes.  With `input` it
    descends along ⟨f_l, a_l⟩, the credit of the state it is given, which needs states of one shape; no block then
    learns from a_L.  The embedding learns from a_0 either way, and the credits themselves are the same.
    """

    credit_at: CreditAt = "output"


class Nothing:
    """The state of a rule that owns nothing."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def double(self, device: torch.device) -> "Nothing":
        return self

    def catch_up(self, trained: "Nothing") -> None:
        pass


class Matrices:
    """Fixed feedback matrices."""

    def __init__(self, matrices: list[Tensor]) -> None:
        self.matrices = matrices

    def state_dict(self) -> dict[str, Any]:
        return {"matrices": self.matrices}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for mine, stored in zip(self.matrices, state["matrices"], strict=True):
            mine.copy_(stored)

    def double(self, device: torch.device) -> "Matrices":
        return Matrices([b.to(device).double() for b in self.matrices])

    def catch_up(self, trained: "Matrices") -> None:
        pass


class Stream:
    """A generator that is all a rule owns: it draws anew at every step."""

    def __init__(self, rng: torch.Generator) -> None:
        self.rng = rng

    @classmethod
    def seeded(cls, rng: torch.Generator) -> "Stream":
        return cls(seeded(rng))

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.set_state(state["rng"])

    def double(self, device: torch.device) -> "Stream":
        return Stream(self.rng.clone_state())

    def catch_up(self, trained: "Stream") -> None:
        pass


def seeded(rng: torch.Generator) -> torch.Generator:
    """A generator of one's own, whose seed is drawn."""
    return torch.Generator().manual_seed(int(torch.randint(2**62, (1,), generator=rng)))


def normal_like(states: Sequence[Tensor], rng: torch.Generator) -> list[Tensor]:
    """A normal number for every number of every state; drawn in float32, so that they are the same in any precision."""
    return [torch.randn(h.shape, generator=rng).to(h) for h in states]
