"""What a network draws from PyTorch's global generators, like dropout, as part of the run."""

from typing import Any

import torch
from torch import Tensor


class Draws:
    """While it is entered, the global generators go on from where this run left them; others find theirs untouched.

    So a run computes the same bits whoever is trained before it in the same process, and after it was resumed.
    """

    def __init__(self, rng: torch.Generator, device: torch.device) -> None:
        self.device = device
        seed = int(torch.randint(2**62, (1,), generator=rng))
        self.state = [torch.Generator(where).manual_seed(seed).get_state() for where in self._places()]

    def _places(self) -> list[torch.device]:
        return [torch.device("cpu"), *([self.device] if self.device.type == "cuda" else [])]

    def __enter__(self) -> None:
        self._outside = self._swap(self.state)

    def __exit__(self, *_: Any) -> None:
        self.state = self._swap(self._outside)

    def _swap(self, states: list[Tensor]) -> list[Tensor]:
        before = []
        for where, state in zip(self._places(), states, strict=True):
            if where.type == "cuda":
                before.append(torch.cuda.get_rng_state(where))
                torch.cuda.set_rng_state(state, where)
            else:
                before.append(torch.get_rng_state())
                torch.set_rng_state(state)
        return before
