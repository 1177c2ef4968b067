"""What every model's configuration can say of itself."""

from typing import Protocol

import torch

from sonde.network import Network, Signature


class Model(Protocol):
    """A network's configuration: it knows its label and builds itself from a generator."""

    @property
    def label(self) -> str: ...
    @property
    def variant(self) -> str | None: ...
    @property
    def d(self) -> int: ...
    @property
    def L(self) -> int: ...
    @property
    def init_scale(self) -> float | None:
        """What the usual random weights are multiplied by, where the model has such a factor."""
        ...

    def check(self, signature: Signature) -> None:
        """Raise, before anything is trained, if this network cannot do what the task asks."""
        ...

    def build(self, signature: Signature, rng: torch.Generator) -> Network: ...
