"""What every model's configuration can say of itself."""

from typing import Protocol

import torch

from sonde.network import Network, Signature


class Model(Protocol):
    """A network's configuration: it knows its label and builds itself from a generator."""

    @property
    def label(self) -> str:
        """What it is called in figures and tables."""
        ...

    @property
    def variant(self) -> str | None:
        """`raw` or `scaled` where the residual study tells its weights apart; None elsewhere."""
        ...

    @property
    def d(self) -> int:
        """Width of the states; of maps, their channels at the end."""
        ...

    @property
    def L(self) -> int:
        """How many blocks there are: the states are h_0 … h_L."""
        ...

    @property
    def init_scale(self) -> float | None:
        """What the usual random weights are multiplied by, where the model has such a factor."""
        ...

    def check(self, signature: Signature) -> None:
        """Raise, before anything is trained, if this network cannot do what the task asks."""
        ...

    def build(self, signature: Signature, rng: torch.Generator) -> Network:
        """The network for inputs and outputs of this signature; every weight is drawn from `rng`."""
        ...
