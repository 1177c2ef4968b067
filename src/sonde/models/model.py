"""What every model's configuration can say of itself."""

from typing import Protocol

import torch

from sonde.network import Network


class Model(Protocol):
    """A network's configuration: it knows its label and builds itself from a generator."""

    @property
    def label(self) -> str: ...
    @property
    def variant(self) -> str | None: ...
    @property
    def width(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def alpha(self) -> float | None: ...

    def check(self, shape: tuple[int, ...], outputs: int) -> None:
        """Raise, before anything is trained, if this network cannot map such inputs to such outputs."""
        ...

    def build(self, shape: tuple[int, ...], outputs: int, rng: torch.Generator) -> Network: ...
