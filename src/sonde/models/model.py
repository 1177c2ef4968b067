"""The interface of models, the layers that several networks share, and models that a user's function makes."""

import dataclasses
import math
from abc import ABC
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.validated import accepted_by, config_class, function_options
from sonde.network import Network, Signature
from sonde.network.chain import chain


class Model(Protocol):
    """A network's configuration: it has a label and builds the network from a generator.

    By default a model has no variant and no factor on its initial weights, and fits every task.
    """

    @property
    def label(self) -> str:
        """The model's name in figures and tables."""
        ...

    @property
    def variant(self) -> str | None:
        """`raw` or `scaled` for the networks of the residual study, by the scale of their weights; None for others."""
        return None

    @property
    def d(self) -> int:
        """The width of the states; for maps, the channels of the last one."""
        ...

    @property
    def L(self) -> int:
        """The number of blocks; the states are h_0 … h_L."""
        ...

    @property
    def init_scale(self) -> float | None:
        """The factor on the usual initial weights, for models that have one."""
        return None

    def check(self, signature: Signature) -> None:
        """Raise an error before training if this network does not fit the task."""
        return

    def build(self, signature: Signature, rng: torch.Generator) -> Network:
        """Build the network for inputs and outputs of this signature; all weights are drawn from `rng`."""
        ...


@contextmanager
def default_init(rng: torch.Generator) -> Iterator[None]:
    """Inside, new modules draw PyTorch's default weights from `rng`; afterwards the global generator is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (1,), generator=rng)))
        yield


class Embedding(nn.Module):
    """Linear map of the flattened input."""

    def __init__(self, shape: tuple[int, ...], d: int) -> None:
        super().__init__()
        self.axes = len(shape)
        self.linear = nn.Linear(math.prod(shape), d)

    def forward(self, x: Tensor) -> Tensor:
        h_Nd: Tensor = self.linear(x.flatten(-self.axes))
        return h_Nd


class Readout(nn.Module):
    """LayerNorm (optional), then a linear head; with `tokens` it reads the first token."""

    def __init__(self, d: int, outputs: int, *, out_ln: bool, tokens: bool = False) -> None:
        super().__init__()
        self.tokens = tokens
        self.out_ln = nn.LayerNorm(d) if out_ln else nn.Identity()
        self.out_head = nn.Linear(d, outputs)

    def forward(self, h: Tensor) -> Tensor:
        z_NC: Tensor = self.out_head(self.out_ln(h[..., 0, :] if self.tokens else h))
        return z_NC


_GIVEN = ("shape", "outputs", "classifies")
"""Parameters that get their values from the task."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PluginModel(ABC):
    """A function that makes a module, or a module class; its keyword parameters are the options.

    The run's seed determines what it draws from PyTorch's global generator.
    """

    make: ClassVar[Callable[..., nn.Module]]
    label: ClassVar[str]

    def build(self, signature: Signature, rng: torch.Generator) -> Network:
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        given = {name: getattr(signature, name) for name in _GIVEN}
        with default_init(rng):
            return to_network(type(self).make(**options, **accepted_by(type(self).make, given)))


def model_from_function(name: str, make: Callable[..., nn.Module]) -> type[PluginModel]:
    """The configuration class of a function that returns a module."""
    options = function_options(make, name, _GIVEN)
    return config_class(name, options, PluginModel, make, make=staticmethod(make), label=name)


def to_network(module: nn.Module) -> Network:
    """Turn a module that a model built into the chain of units that rules and probes need."""
    if not isinstance(module, nn.Module):
        raise SondeError(f"a model makes a torch.nn.Module, not {type(module).__name__}")
    return chain(module) if isinstance(module, nn.Sequential) else Network.of(module)
