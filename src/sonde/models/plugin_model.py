"""A network that a function of somebody else makes."""

import dataclasses
from abc import ABC
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import nn

from sonde.core.errors import SondeError
from sonde.core.signatures import configuration, options_of, taken
from sonde.models.model import default_init
from sonde.network import Network, Signature
from sonde.network.chain import chain

GIVEN = ("shape", "outputs", "classifies")
"""What the task fills in where the function asks for it by name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made(ABC):
    """A function or a class of modules; its keyword parameters are the options.

    Whatever it draws from PyTorch's global generator follows from the run's seed.
    """

    make: ClassVar[Callable[..., nn.Module]]
    label: ClassVar[str]

    def build(self, signature: Signature, rng: torch.Generator) -> Network:
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        given = {name: getattr(signature, name) for name in GIVEN}
        with default_init(rng):
            return network_of(type(self).make(**options, **taken(type(self).make, given)))


def made(name: str, make: Callable[..., nn.Module]) -> type[Made]:
    """The configuration of a function that returns a network."""
    return configuration(name, options_of(make, name, GIVEN), Made, make, make=staticmethod(make), label=name)


def network_of(module: nn.Module) -> Network:
    """A stranger's module as the chain that rules and probes need: the one place where a module becomes a network."""
    if not isinstance(module, nn.Module):
        raise SondeError(f"a model makes a torch.nn.Module, not a {type(module).__name__}")
    return chain(module) if isinstance(module, nn.Sequential) else Network.of(module)
