"""Modules and parameters that a program puts in place of others while its model is watched."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from sonde.observe.watched_modules import Layers, Spot, spots_of

MOST = 20  # that are told; a program may replace something in every step
GONE = "the module is no longer part of the model"


@dataclass(slots=True)
class Replacement:
    """What is other than it was, by name."""

    step: int
    modules: list[str] = field(default_factory=list)  # others than before, or new
    removed: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)  # likewise
    not_in_optimiser: list[str] = field(default_factory=list)  # of these, where an optimiser was given

    def __str__(self) -> str:
        parts = [
            f"{words} {', '.join(names[:4])}{' …' if len(names) > 4 else ''}"
            for words, names in (
                ("new in place of others:", self.modules or self.parameters),
                ("gone:", self.removed),
                ("in no optimiser that was given:", self.not_in_optimiser),
            )
            if names
        ]
        return f"the model is not the one of the steps before (step {self.step}): {'; '.join(parts)}"


class Content:
    """What a model holds, in order to notice when it holds something else."""

    def __init__(self, spots: Sequence[Spot], parameters: Sequence["weakref.ref[nn.Parameter]"]) -> None:
        self._spots = list(spots)
        self._parameters = [] if _is_distributed() else list(parameters)
        self._held = [self._of(module) for spot in spots if (module := spot.module()) is not None]

    def is_as_it_was(self) -> bool:
        """Whether every module and parameter is still there and in its place.

        Tensors that `torch.func.functional_call` puts in the place of parameters for one call do not count.  Among
        several processes parameters are not compared: sharded ones are exchanged for whole ones in every pass.
        """
        modules = [module for spot in self._spots if (module := spot.module()) is not None]
        if len(modules) < len(self._spots) or any(known() is None for known in self._parameters):
            return False
        return all(
            held == self._of(module) or _is_borrowed(module) for held, module in zip(self._held, modules, strict=True)
        )

    def _of(self, module: nn.Module) -> list[int]:
        """As long as nothing of it is gone, an identity is nobody else's."""
        held = map(id, module._parameters.values()) if self._parameters else ()
        return [*map(id, module._modules.values()), *held]


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _is_borrowed(module: nn.Module) -> bool:
    there = (parameter for parameter in module._parameters.values() if parameter is not None)
    return not all(isinstance(parameter, nn.Parameter) for parameter in there)


def renewed(model: nn.Module, spots: Sequence[Spot], layers: Layers) -> tuple[list[Spot], list[str], list[str]]:
    """The model's modules as they are now; the names of those that are new, and of those that are gone."""
    known = {spot.name: spot for spot in spots}
    found = spots_of(model, layers)
    kept = [known.get(spot.name, spot) for spot in found]
    now = [old if old.module() is spot.module() else spot for old, spot in zip(kept, found, strict=True)]
    fresh = [spot.name for spot in now if spot is not known.get(spot.name)]
    return now, fresh, [name for name in known if name not in {spot.name for spot in now}]
