"""Random generators: every random number of a run comes from a named stream that is derived from its seed.

The stream of (seed, name) is `torch.Generator().manual_seed(s)` on the CPU, with s the first 8 bytes of
SHA-256(f"{seed}/{name}" in UTF-8) as a big-endian number, shifted right by one bit.  `STREAMS` lists them all.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

STREAMS = {
    "init": "the weights of the network",
    "order": "epoch after epoch: which training samples each batch has, and of augmented images crops and mirrorings",
    "draws": "a seed for PyTorch's global generators while the network trains, from which dropout draws",
    "rule": "the rule's feedback matrices, or seeds for its network and noise",
    "probe/null/{epoch}": "of nudge's null, for h_0 … h_L: normal numbers in the shape of the probe batch's states",
    "probe/null/{epoch}/{draw}": "what the rule draws from `rule`, anew; for a rule that draws nothing, for h_0 … h_L: "
    "normal numbers, samples × width",
    "probe/rho/{epoch}": "for h_0 … h_L, for each direction: normal numbers, samples × width",
    "probe/last bit/{layer}/{epoch}": "0 or 1 for every entry of h_l: whether its last bit is moved down or up",
    "identity/train": "training inputs, uniform in [0, 1) before they are stretched to [−1, 1)",
    "identity/test": "test inputs, alike",
    "teacher/train": "training inputs, normal",
    "teacher/test": "test inputs, normal",
    "teacher/embed": "the teacher's embedding, uniform in ±1/√inputs, float64",
    "teacher/blocks.{block}.w1": "w1 of its block, normal, float64",
    "teacher/blocks.{block}.w2": "w2 of its block, normal, float64",
    "teacher/head": "its head, uniform in ±1/√d, float64",
    "parity/train": "training bits, 0 or 1, samples × bits",
    "parity/test": "test bits, alike",
    "rhm/rules/{level}": "an order of all v^s tuples; the symbols of a level take m tuples each, one after the other",
    "rhm/train": "classes; then level by level, for every symbol of every training sample, which of its m tuples",
    "rhm/test": "of test samples, alike",
    "linear_quadratic/train": "training inputs and targets, normal, 2 × samples × d",
    "linear_quadratic/test": "test inputs and targets, alike",
    "digits/random labels": "with random labels, the label of every image",
    "cifar10/train/random labels": "with random labels, the label of every training image",
    "cifar10/test/random labels": "of test images, alike",
    "digits/split": "with seed 0 in every run: an order of the digits; the first 360 are the test set",
    "arrays/split": "with seed 0 in every run: an order of the samples of arrays that name no test set",
    "cifar10/subset": "with seed 0 in every run: an order of the training images; a subset takes the first",
}
"""Name → what is drawn from it, in this order.  Numbers are float32 unless the text names another precision."""


def generator(seed: int, name: str) -> torch.Generator:
    """The stream of (seed, name).  Streams are independent: a new one never shifts another."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


class GlobalDraws:
    """A run's own state of PyTorch's global generators, from which dropout and the like draw.

    Inside the context the global generators continue where this run left them; outside they are as before.  So a run
    computes the same bits whatever else this process trains, and after a resume.
    """

    def __init__(self, rng: torch.Generator, device: torch.device) -> None:
        self.device = device
        seed = int(torch.randint(2**62, (1,), generator=rng))
        self.state = [torch.Generator(where).manual_seed(seed).get_state() for where in self._places()]

    def _places(self) -> list[torch.device]:
        return [torch.device("cpu"), *([] if self.device.type == "cpu" else [self.device])]

    def __enter__(self) -> None:
        self._outside = self._swap(self.state)

    def __exit__(self, *_: Any) -> None:
        self.state = self._swap(self._outside)

    def _swap(self, states: list[Tensor]) -> list[Tensor]:
        before = []
        for where, state in zip(self._places(), states, strict=True):
            before.append(global_state(where))
            set_global_state(state, where)
        return before


def global_state(device: torch.device) -> Tensor:
    """The state of the global generator of this device."""
    match device.type:
        case "cuda":
            return torch.cuda.get_rng_state(device)
        case "mps":
            return torch.mps.get_rng_state()
        case _:
            return torch.get_rng_state()


def set_global_state(state: Tensor, device: torch.device) -> None:
    """Set the state of the global generator of this device."""
    match device.type:
        case "cuda":
            torch.cuda.set_rng_state(state, device)
        case "mps":
            torch.mps.set_rng_state(state)
        case _:
            torch.set_rng_state(state)


@contextmanager
def preserve_rng(*devices: torch.device) -> Iterator[None]:
    """Restore the global generators of the CPU and of these devices afterwards.

    As `torch.random.fork_rng`, but for MPS too.
    """
    before = {where: global_state(where) for where in {torch.device("cpu"), *devices}}
    try:
        yield
    finally:
        for where, state in before.items():
            set_global_state(state, where)
