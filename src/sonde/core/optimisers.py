"""The configuration of an optimiser: Adam, AdamW and SGD by name, any other class of `torch.optim` as a plugin."""

import dataclasses
import inspect
from abc import ABC
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Lt

from sonde.core.errors import SondeError
from sonde.core.validated import config_class, option, validated

Rate = Annotated[float, Ge(0)]
RateSchedule = Literal["constant", "cosine"]

_NOT_OPTIONS = ("self", "params", "lr", "foreach", "fused", "capturable", "differentiable", "maximize")
"""Parameters that are no options: those that choose an implementation, and the rate, which follows the schedule."""


@validated
class Optimiser:
    """Adam, AdamW (decoupled weight decay) or SGD, with a constant rate or a cosine schedule to zero over the epochs.

    SGD adds the weight decay to the gradient, as `torch.optim.SGD` does.  At rate 0 the network keeps its initial
    weights, and only what the rule owns learns.
    """

    name: Literal["adam", "adamw", "sgd"] = "adamw"
    lr: Rate = 1e-3
    weight_decay: Annotated[float, Ge(0)] = 0.01
    schedule: RateSchedule = "cosine"
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0  # of sgd
    nesterov: bool = False  # of sgd

    def refuse_nonsense(self) -> None:
        """Raise where options contradict each other."""
        if self.name != "sgd" and (self.momentum or self.nesterov):
            raise SondeError(
                f"optimiser.{'momentum' if self.momentum else 'nesterov'} is an option of sgd, not of {self.name}: "
                "set optimiser.name=sgd, or leave it out"
            )
        if self.nesterov and not self.momentum:
            raise SondeError("optimiser.nesterov needs a momentum: set optimiser.momentum=0.9")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PluginOptimiser(ABC):
    """The configuration of a class with the interface of `torch.optim`; its keyword parameters are the options."""

    lr: Rate = 1e-3
    schedule: RateSchedule = "cosine"

    kind: ClassVar[type[Any]]

    @property
    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of the class, without the rate."""
        own = PluginOptimiser.__dataclass_fields__
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in own}


def plugin_optimiser(name: str, kind: type[Any]) -> type[PluginOptimiser]:
    """Make the configuration class of an optimiser class; raise where a parameter has no default."""
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise SondeError(f"{name} needs the loss several times per step, which rules do not support: choose another")
    options = []
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.name in _NOT_OPTIONS or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is parameter.empty:
            raise SondeError(f"{name}: give its parameter {parameter.name} a default; it becomes an option")
        options.append(option(parameter.name, parameter.default))
    return config_class(name, options, PluginOptimiser, kind, kind=kind)
