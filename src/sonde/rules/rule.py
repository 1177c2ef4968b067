"""What a learning rule is: it owns a state, names a credit for every hidden state, and may learn to do it better.

N samples, T tokens, d width, C outputs, L blocks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from sonde.losses import Loss

CreditScale = Literal["rms", "none"]

# How credit reaches the blocks: by automatic differentiation across all of them; at each cut, as the rule says;
# or across all of them to the embedding, the blocks themselves staying as they are.
Route = Literal["global", "local", "frozen"]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a rule must know of network and run before it starts."""

    shapes: Sequence[tuple[int, ...]]  # of one sample's h_0 … h_L
    outputs: int
    steps: int  # optimiser steps in the whole run
    device: torch.device
    dtype: torch.dtype


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
        top_gradient: Tensor | None = None,
    ) -> None:
        self.states = states  # h_0 … h_L
        self.output_NC = output_NC
        self.y = y
        self.loss = loss
        self.readout = readout
        self._gradients = gradients
        self._top = top_gradient

    @cached_property
    def error_NC(self) -> Tensor:
        """e = ∂ℓ_i/∂z_i."""
        return self.loss.error(self.output_NC, self.y)

    @property
    def gradients(self) -> Sequence[Tensor]:
        """g_0 … g_L, per sample: the exact gradient at every state."""
        return self._gradients()

    @property
    def top_gradient(self) -> Tensor:
        """g_L, per sample."""
        return self.gradients[-1] if self._top is None else self._top


class RuleState(Protocol):
    """Everything a rule owns, as a tree of tensors and plain values."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
    def double(self, device: torch.device) -> "RuleState":
        """A float64 copy to compute credits with; nothing done to it reaches this state."""
        ...

    def catch_up(self, trained: Any) -> None:
        """Stand at the step where `trained` stands, with what was drawn here: chance answers as the rule would."""
        ...


class Rule(Protocol):
    """A rule's configuration.  Credit a_l stands in for +g_l: it points uphill."""

    @property
    def label(self) -> str: ...
    @property
    def route(self) -> Route: ...
    @property
    def reads_top_gradient(self) -> bool:
        """Whether `credits` looks at g_L; where it does not, g_L is not computed."""
        ...

    @property
    def credit_scale(self) -> CreditScale: ...
    @property
    def penalty(self) -> float: ...

    def init(self, facts: Facts, rng: torch.Generator) -> RuleState: ...

    def credits(self, state: Any, signal: Signal) -> list[Tensor]:
        """a_0 … a_L of a batch, per sample, before normalisation."""
        ...

    def update(self, state: Any, signal: Signal) -> dict[str, Tensor]:
        """Learn from the batch what the rule learns, and return what it logs, still on the device."""
        ...


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
