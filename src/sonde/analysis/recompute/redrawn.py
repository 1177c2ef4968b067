"""What every rule owns, drawn anew as it was drawn at first: the state that chance has in its place."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sonde.analysis.recompute.numbers import norm

State = Mapping[str, Any]
Drawn = tuple[dict[str, Any], State]
"""Whose equation sends it, by the options that differ from the rule's own; and what that rule owns."""
Redraw = Callable[[State, torch.Generator, Mapping[str, Tensor]], Drawn]
"""From the state at the end, a generator, and the blocks' matrices at initialisation, in their order."""


def between_states(state: State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> Drawn:
    """FA: B_l ~ N(0, 1/d), d the width above; by layers, V with the size of W's initial entries."""
    if isinstance(state["matrices"], Mapping):
        return between_layers(state, rng, initial)
    return {}, {"matrices": [torch.randn(b.shape, generator=rng) / b.shape[1] ** 0.5 for b in state["matrices"]]}


def between_layers(state: State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> Drawn:
    """A rule of layers: matrices that know nothing of W, as FA draws them."""
    matrices = {}
    for name, w in initial.items():
        size = norm(w.double().flatten().tolist()) / w.numel() ** 0.5
        matrices[name] = torch.randn(w.shape, generator=rng) * size
    return {"name": "fa", "level": "layer"}, {"matrices": matrices}


def from_the_output(state: State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> Drawn:
    """DFA and DRTP: B_l ~ N(0, 1/C)."""
    return {}, {"matrices": feedback([b.shape for b in state["matrices"]], rng)}


def blind_from_the_output(state: State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> Drawn:
    """Rules that learn DFA's matrices: DFA, whose matrices stay."""
    matrices = state["matrices"] if "matrices" in state else state["net"].values()
    return {"name": "dfa"}, {"matrices": feedback([b.shape for b in matrices], rng)}


def feedback(shapes: list[torch.Size], rng: torch.Generator) -> list[Tensor]:
    return [torch.randn(shape, generator=rng) * shape[1] ** -0.5 for shape in shapes]


def local_heads(state: State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> Drawn:
    """predsim: other heads, then other maps."""
    net = state["net"]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (1,), generator=rng)))
        fresh: dict[str, Tensor] = {}
        for kind, bias in (("heads", True), ("maps", False)):
            for layer in range(sum(name.startswith(f"{kind}.") and name.endswith("weight") for name in net)):
                outputs, inputs = net[f"{kind}.{layer}.weight"].shape
                for name, value in nn.Linear(inputs, outputs, bias=bias).state_dict().items():
                    fresh[f"{kind}.{layer}.{name}"] = value
    return {}, {"net": fresh}


def inverses(state: State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> Drawn:
    """DDTP: Q_l ~ N(0, 1/D), D numbers of the last state."""
    shapes = [learner["net"]["weight"].shape for learner in state["learners"]]
    drawn = [torch.empty(shape).normal_(std=shape[1] ** -0.5, generator=rng) for shape in shapes]
    return {}, {"learners": [{"net": {"weight": q}} for q in drawn]}


def predictor(state: State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> Drawn:
    """State Bridge: another network."""
    return {}, {"net": default_weights(state["net"], rng)}


def value(state: State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> Drawn:
    """Credit Bridge at the same step: another network, a seed for its noise, other matrices for the warm-up."""
    net = default_weights(state["value"]["net"], rng)
    torch.randint(2**62, (1,), generator=rng)
    matrices = feedback([b.shape for b in state["feedback"]["matrices"]], rng)
    return {}, {"value": {"net": net}, "feedback": {"matrices": matrices}, "steps": state["steps"]}


def default_weights(like: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
    """PyTorch's default weights of linear maps of these sizes, from a seed that is drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (1,), generator=rng)))
        fresh: dict[str, Tensor] = {}
        for name in sorted({name.rpartition(".")[0] for name in like}, key=place):
            outputs, inputs = like[f"{name}.weight"].shape
            layer = nn.Linear(inputs, outputs)
            fresh |= {f"{name}.weight": layer.weight.detach(), f"{name}.bias": layer.bias.detach()}
    return fresh


def place(name: str) -> tuple[str, int]:
    """Where a layer stands among those that were built: entries before layers, each by its number."""
    kind, number = name.split(".")
    return kind, int(number)


REDRAWN: dict[str, Redraw] = {
    "fa": between_states,
    **dict.fromkeys(("usf", "frsf", "brsf", "kp", "mirror"), between_layers),
    "dfa": from_the_output,
    "drtp": from_the_output,
    "dkp": blind_from_the_output,
    "fdfa": blind_from_the_output,
    "predsim": local_heads,
    "ddtp": inverses,
    "state_bridge": predictor,
    "credit_bridge": value,
}
