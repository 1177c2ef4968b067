"""What rules own between steps: states made of matrices, networks with an optimiser, generators and counters."""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from sonde.rules.rule import Facts

Matrix = Mapping[str, Tensor]  # weight matrices by the names of their parameters


class StoredState:
    """A rule's state made of parts.  `parts` maps each attribute to the key it is stored under.

    A part is a number, a tensor, a generator, a module, another state, or a list or dict of these.  The entries
    of a part with an empty key are stored beside the other keys, without a level between.
    """

    parts: ClassVar[Mapping[str, str]] = {}

    def state_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, key in self.parts.items():
            stored = _stored(getattr(self, name))
            found |= {key: stored} if key else stored
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, key in self.parts.items():
            setattr(self, name, _loaded(getattr(self, name), state[key] if key else state))

    def double(self, device: torch.device) -> Self:
        twin = copy.copy(self)
        for name in self.parts:
            setattr(twin, name, _doubled(getattr(self, name), device))
        return twin

    def catch_up(self, trained: Any) -> None:
        pass


def _stored(part: Any) -> Any:
    if isinstance(part, torch.Generator):
        return part.get_state()
    if isinstance(part, list):
        return [_stored(one) for one in part]
    if isinstance(part, dict):
        return {name: _stored(one) for name, one in part.items()}
    return part.state_dict() if hasattr(part, "state_dict") else part


def _loaded(part: Any, stored: Any) -> Any:
    """The part with the stored values.  Everything but a number is changed in place."""
    if isinstance(part, torch.Generator):
        part.set_state(stored)
    elif isinstance(part, Tensor):
        part.copy_(stored)
    elif isinstance(part, list):
        for one, its in zip(part, stored, strict=True):
            _loaded(one, its)
    elif isinstance(part, dict):
        for name, one in part.items():
            _loaded(one, stored[name])
    elif hasattr(part, "load_state_dict"):
        part.load_state_dict(stored)
    else:
        return stored
    return part


def _doubled(part: Any, device: torch.device) -> Any:
    if isinstance(part, torch.Generator):
        return part.clone_state()
    if isinstance(part, Tensor):
        return part.to(device).double()
    if isinstance(part, list):
        return [_doubled(one, device) for one in part]
    if isinstance(part, dict):
        return {name: _doubled(one, device) for name, one in part.items()}
    if isinstance(part, nn.Module):
        return copy.deepcopy(part).to(device).double()
    return part.double(device) if hasattr(part, "double") else part


class Nothing(StoredState):
    """The state of a rule that owns nothing."""


class Matrices(StoredState):
    """Feedback matrices, one for each state or block."""

    parts: ClassVar = {"matrices": "matrices"}

    def __init__(self, matrices: list[Tensor]) -> None:
        self.matrices = matrices


class BackwardMatrices(StoredState):
    """Matrices V by the names of the weight matrices W that they replace in the backward pass."""

    parts: ClassVar = {"matrices": "matrices"}

    def __init__(self, matrices: dict[str, Tensor]) -> None:
        self.matrices = matrices


class RandomState(StoredState):
    """A generator that the rule draws from at every step, and nothing else."""

    parts: ClassVar = {"rng": "rng"}

    def __init__(self, rng: torch.Generator) -> None:
        self.rng = rng


class Learner(StoredState):
    """A network that the rule trains beside the model, and its Adam."""

    parts: ClassVar = {"net": "net", "optimiser": "optimiser"}

    def __init__(self, net: nn.Module, lr: float = 1e-3) -> None:
        self.net = net
        self.lr = lr
        self.optimiser = torch.optim.Adam(net.parameters(), lr=lr, fused=True)

    def descend(self, loss: Tensor) -> None:
        """Take a step of Adam down this loss."""
        self.follow(torch.autograd.grad(loss, list(self.net.parameters())))

    def follow(self, gradients: Sequence[Tensor]) -> None:
        """Take a step of Adam against these gradients of the parameters."""
        for p, g in zip(self.net.parameters(), gradients, strict=True):
            p.grad = g
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def double(self, device: torch.device) -> "Learner":
        return Learner(_doubled(self.net, device), self.lr)


def seeded(rng: torch.Generator) -> torch.Generator:
    """A new generator whose seed is drawn from `rng`."""
    return torch.Generator().manual_seed(_drawn_seed(rng))


def default_weights(make: "type[nn.Module]", *arguments: Any, rng: torch.Generator) -> nn.Module:
    """A module with PyTorch's default weights, drawn from `rng`; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_drawn_seed(rng))
        return make(*arguments)


def _drawn_seed(rng: torch.Generator) -> int:
    return int(torch.randint(2**62, (1,), generator=rng))


def normal_like(states: Sequence[Tensor], rng: torch.Generator) -> list[Tensor]:
    """Normal noise in the shapes of the states, drawn in float32 so that every precision gets the same numbers."""
    return [torch.randn(h.shape, generator=rng).to(h) for h in states]


def weights_of(units: Sequence[Matrix]) -> dict[str, Tensor]:
    """The weight matrices of all units in one dict."""
    return {name: w for unit in units for name, w in unit.items()}


def drawn(facts: "Facts", rng: torch.Generator) -> dict[str, Tensor]:
    """A normal matrix for every weight matrix W, with the root mean square of W's initial entries."""
    return {
        name: (torch.randn(w.shape, generator=rng) * _rms(w.cpu().double())).to(facts.device, facts.dtype)
        for name, w in weights_of(facts.units).items()
    }


def sizes(facts: "Facts") -> dict[str, Tensor]:
    """The root mean square of every weight matrix at initialisation."""
    return {name: _rms(w) for name, w in weights_of(facts.units).items()}


def _rms(w: Tensor) -> Tensor:
    """Of an initial W, whose mean is zero, this is the standard deviation."""
    return w.square().mean().sqrt()


def cast_like(matrices: Matrix, units: Sequence[Matrix]) -> dict[str, Tensor]:
    """The matrices in the precision and on the device of the weights."""
    return {name: matrices[name].to(w) for name, w in weights_of(units).items()}
