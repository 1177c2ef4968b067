"""What is seen once: modules in order of execution, parameters, inputs and targets, mode, optimisers."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sonde.watching.observations import Call
from sonde.watching.spots import Spot

NEVER_CALLED = "never called"
NO_CALL = "it is compiled, or called in a way that hooks do not hear"
MOST = 8  # tensors of an input that are described


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in nested tuples, lists and mappings, with where it was."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from tensors(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from tensors(inner, f"{name}.{place}" if name else str(place))


def first_float(value: Any) -> Tensor | None:
    """The first floating-point tensor of a module's output, one with axes before a mere number."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    scalar = None
    for _, tensor in tensors(value):
        if tensor.is_floating_point():
            if tensor.dim():
                return tensor
            scalar = tensor if scalar is None else scalar
    return scalar


class Glance:
    """Statistics of a tensor, still on its device."""

    def __init__(self, name: str, x: Tensor) -> None:
        self.name, self.shape, self.dtype = name, list(x.shape), str(x.dtype).removeprefix("torch.")
        self.numbers: Tensor | None = None
        if x.numel() and x.layout == torch.strided and not x.is_complex() and not x.is_nested:
            x = x.detach()
            y = x.float() if x.device.type == "mps" else x.double()
            broken, rms = (~y.isfinite()).to(y.dtype).mean(), y.square().mean().sqrt()
            self.numbers = torch.stack([y.mean(), y.std(correction=0), y.min(), y.max(), broken, rms])

    def read(self) -> dict[str, Any]:
        known: dict[str, Any] = {"name": self.name, "shape": self.shape, "dtype": self.dtype}
        if self.numbers is not None:
            names = ("mean", "std", "min", "max", "not_finite_share", "rms")
            known |= {name: plain(value) for name, value in zip(names, self.numbers.tolist(), strict=True)}
        return known


def plain(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if math.isfinite(value) else None


def glances(value: Any) -> list[Glance]:
    return [
        Glance(name or "0", tensor) for name, tensor in list(tensors(value))[:MOST] if type(tensor) is Tensor
    ]


def modules(spots: Iterable[Spot], calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Those that were called, in order of execution; then those that were not, with the reason."""
    counts: dict[str, int] = {}
    firsts: dict[str, Call] = {}
    for call in calls:
        counts[call.spot.name] = counts.get(call.spot.name, 0) + 1
        firsts.setdefault(call.spot.name, call)
    known = [
        {
            "name": name,
            "type": call.spot.type,
            "calls": counts[name],
            "shape": list(call.shape),
            "input_shape": list(call.input_shape),
        }
        for name, call in firsts.items()
    ]
    types = {spot.name: spot.type for spot in spots}
    return known + [
        {"name": name, "type": types[name], "calls": 0, "reason": reason}
        for name, reason in unseen(spots, calls).items()
    ]


def unseen(spots: Iterable[Spot], calls: Sequence[Call]) -> dict[str, str]:
    """The modules that would have been watched, had they been called, and why they were not."""
    called = {call.spot.name for call in calls}
    missed = NEVER_CALLED if calls else NO_CALL
    return {
        spot.name: spot.hidden or spot.silent or missed
        for spot in spots
        if spot.chosen and spot.name not in called
    }


def parameters(
    names: Mapping[int, str], model: nn.Module, held: Iterable[int] | None
) -> list[dict[str, Any]]:
    """Each parameter: shape, whether it asks for a gradient, has one, and is in an optimiser (None: none was given)."""
    kept = None if held is None else set(held)
    found = []
    for parameter in model.parameters():
        shape = None if isinstance(parameter, nn.parameter.UninitializedParameter) else list(parameter.shape)
        found.append(
            {
                "name": names.get(id(parameter), "?"),
                "shape": shape,
                "requires_grad": parameter.requires_grad,
                "in_optimiser": None if kept is None else id(parameter) in kept,
            }
        )
    return found


def optimiser(known: torch.optim.Optimizer) -> dict[str, Any]:
    """Its kind and the options of its groups, as plain values."""
    groups = [
        {key: value for key, value in group.items() if key != "params" and _is_plain(value)}
        | {"parameters": len(group["params"])}
        for group in known.param_groups
    ]
    return {"type": type(known).__name__, "groups": groups}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(inner) for inner in value)
    return (
        value is None
        or isinstance(value, str | bool | int)
        or (isinstance(value, float) and math.isfinite(value))
    )
