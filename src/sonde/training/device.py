"""The device of a run, its number of threads, and whether the memory suffices."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace

import torch

from sonde.config import RunConfig
from sonde.core.errors import SondeError
from sonde.core.generators import generator


def resolve_device(name: str) -> torch.device:
    """The device of that name; `auto` takes CUDA, then Apple's GPU, then the CPU."""
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
    """Use one thread inside the context: small matrix products are faster so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_DEEP, _WIDE = 1_000, 1_024  # smaller networks are not checked
_PER_WEIGHT = 4 * 3 + 8  # bytes: the weight, its gradient, its initial value, and the float64 copy of probes


def refuse_too_large(config: RunConfig, device: torch.device) -> None:
    """Raise where a network needs more memory than there is; only models with options `L` and `d` are checked."""
    model = config.model
    if not {"L", "d"} <= {field.name for field in fields(model)} or (model.L < _DEEP and model.d <= _WIDE):  # type: ignore[arg-type]
        return
    needed, there = least_memory(config), memory_of(device)
    if there is not None and needed > there:
        raise SondeError(
            f"model.L = {model.L} with model.d = {model.d} takes at least {needed / 1e9:,.0f} GB of memory, and "
            f"{'this machine' if device.type == 'cpu' else device} has {there / 1e9:,.0f} GB: "
            "choose a smaller model.L or model.d"
        )


def least_memory(config: RunConfig) -> int:
    """A lower bound in bytes: weights of the blocks, and their states for a batch and for the probe samples."""
    model = config.model
    width = min(model.d, _WIDE)

    def weights(depth: int) -> int:
        small = replace(model, L=depth, d=width)  # type: ignore[type-var]
        net = small.build(config.signature, generator(0, "init"))
        return sum(weight.numel() for weight in net.parameters())

    block = (weights(2) - weights(1)) * model.d**2 // width**2
    states = model.d * (4 * config.batch_size + 8 * config.probes.size)
    return model.L * (_PER_WEIGHT * block + states)


def memory_of(device: torch.device) -> int | None:
    """The total memory of the device in bytes; None where it is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
