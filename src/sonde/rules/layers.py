"""What layer-level rules share: backward matrices V, one for every weight matrix W of the blocks, by W's name."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sonde.rules.rule import Facts, Matrix


class Backward:
    """Matrices by the names of the weights they stand beside."""

    def __init__(self, matrices: dict[str, Tensor]) -> None:
        self.matrices = matrices

    def state_dict(self) -> dict[str, Any]:
        return {"matrices": dict(self.matrices)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, mine in self.matrices.items():
            mine.copy_(state["matrices"][name])

    def double(self, device: torch.device) -> "Backward":
        return Backward({name: v.to(device).double() for name, v in self.matrices.items()})

    def catch_up(self, trained: "Backward") -> None:
        pass


def weights_of(units: Sequence[Matrix]) -> dict[str, Tensor]:
    """The matrices of all units."""
    return {name: w for unit in units for name, w in unit.items()}


def size(w: Tensor) -> Tensor:
    """The root mean square of W's entries: of an initial W, whose mean is zero, the standard deviation it has."""
    return w.square().mean().sqrt()


def drawn(facts: Facts, rng: torch.Generator) -> dict[str, Tensor]:
    """Normal matrices, each with the size of W's initial entries."""
    return {
        name: (torch.randn(w.shape, generator=rng) * size(w.cpu().double())).to(facts.device, facts.dtype)
        for name, w in weights_of(facts.units).items()
    }


def sizes(facts: Facts) -> dict[str, Tensor]:
    """Of every W at initialisation."""
    return {name: size(w) for name, w in weights_of(facts.units).items()}


def cast(matrices: Mapping[str, Tensor], units: Sequence[Matrix]) -> dict[str, Tensor]:
    """In the precision and on the device of the weights."""
    return {name: matrices[name].to(w) for name, w in weights_of(units).items()}
