"""Where a run computes, and on how many threads."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sonde.core.errors import SondeError


def resolve_device(name: str) -> torch.device:
    """`auto` takes CUDA, then Apple's GPU, then the CPU."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, there in present.items() if there)
    if not present.get(name, False):
        raise SondeError(
            f"device {name!r} is not there: use one of {', '.join(k for k, v in present.items() if v)} or auto"
        )
    return torch.device(name)


@contextmanager
def one_thread() -> Iterator[None]:
    """Small matrix products are faster on one thread; the caller's number is put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
