"""How much memory a run takes at least: refused before it is trained where the machine does not have it."""

import os
from dataclasses import fields, replace

import torch

from sonde.config import RunConfig
from sonde.core.errors import SondeError
from sonde.core.generators import generator

DEEP, WIDE = 1_000, 1_024  # networks below both are not looked at
PER_WEIGHT = 4 * 3 + 8  # bytes: the weight, its gradient, its start, and a copy in float64 that is measured


def refuse_too_large(config: RunConfig, device: torch.device) -> None:
    """Only networks with a depth `L` and a width `d` can be told by their configuration."""
    model = config.model
    if not {"L", "d"} <= {field.name for field in fields(model)} or (model.L < DEEP and model.d <= WIDE):  # type: ignore[arg-type]
        return
    needed, there = least(config), memory_of(device)
    if there is not None and needed > there:
        raise SondeError(
            f"model.L = {model.L} with model.d = {model.d} takes at least {_gigabytes(needed)} of memory, and "
            f"{'this machine' if device.type == 'cpu' else device} has {_gigabytes(there)}: "
            "choose a smaller model.L or model.d"
        )


def least(config: RunConfig) -> int:
    """Bytes of the blocks alone: their weights, and their states of a batch and of the samples that are measured."""
    model = config.model
    width = min(model.d, WIDE)

    def weights(depth: int) -> int:
        small = replace(model, L=depth, d=width)  # type: ignore[type-var]
        net = small.build(config.signature, generator(0, "init"))
        return sum(weight.numel() for weight in net.parameters())

    block = (weights(2) - weights(1)) * model.d**2 // width**2
    states = model.d * (4 * config.batch_size + 8 * config.probes.size)
    return model.L * (PER_WEIGHT * block + states)


def memory_of(device: torch.device) -> int | None:
    """All that there is, in bytes; None where that cannot be known."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.0f} GB"
