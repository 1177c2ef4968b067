"""What every rule owns, drawn anew as it was drawn at first: the state that chance has in its place."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

State = Mapping[str, Any]


def between_states(state: State, rng: torch.Generator) -> State:
    """FA: B_l ~ N(0, 1/d), d the width above."""
    return {"matrices": [torch.randn(b.shape, generator=rng) / b.shape[1] ** 0.5 for b in state["matrices"]]}


def from_the_output(state: State, rng: torch.Generator) -> State:
    """DFA: B_l ~ N(0, 1/C)."""
    return {"matrices": [torch.randn(b.shape, generator=rng) * b.shape[1] ** -0.5 for b in state["matrices"]]}


def predictor(state: State, rng: torch.Generator) -> State:
    """State Bridge: another network."""
    return {"net": default_weights(state["net"], rng)}


def value(state: State, rng: torch.Generator) -> State:
    """Credit Bridge at the same step: another network, a seed for its noise, other matrices for the warm-up."""
    net = default_weights(state["value"]["net"], rng)
    torch.randint(2**62, (1,), generator=rng)
    return {
        "value": {"net": net},
        "feedback": from_the_output(state["feedback"], rng),
        "steps": state["steps"],
    }


def default_weights(like: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
    """PyTorch's default weights of linear maps of these sizes, from a seed that is drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (1,), generator=rng)))
        shapes = [weight.shape for weight in like.values() if weight.ndim == 2]
        layers = nn.ModuleList(nn.Linear(inputs, outputs) for outputs, inputs in shapes)
    return {f"layers.{name}": weight for name, weight in layers.state_dict().items()}


REDRAWN: dict[str, Callable[[State, torch.Generator], State]] = {
    "fa": between_states,
    "dfa": from_the_output,
    "state_bridge": predictor,
    "credit_bridge": value,
}
