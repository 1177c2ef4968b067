"""What is seen once: modules in order of execution, parameters, inputs and targets, mode, optimisers."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sonde.observe.reductions import readable
from sonde.observe.step_record import Call
from sonde.observe.watched_modules import Spot, is_lazy

NEVER_CALLED = "never called"
NO_CALL = "it is compiled, or called in a way that hooks do not hear"
MOST = 8  # tensors of an input that are described
GLANCED = (
    *("mean", "std", "min", "max", "not_finite_share", "rms", "whole_share"),
    *("feature_offset", "feature_std_max", "feature_std_min"),
)
KEPT = 1 << 20  # numbers of a model whose first weights are kept for experiments


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
        if readable(x) is None:
            x = x.detach()
            y = x.float() if x.device.type == "mps" else x.double()
            broken, rms = (~y.isfinite()).to(y.dtype).mean(), y.square().mean().sqrt()
            whole = (y == y.round()).to(y.dtype).mean()
            of_all = [y.mean(), y.std(correction=0), y.min(), y.max(), broken, rms, whole]
            self.numbers = torch.stack([*of_all, *_by_feature(y)])

    def read(self) -> dict[str, Any]:
        known: dict[str, Any] = {"name": self.name, "shape": self.shape, "dtype": self.dtype}
        if self.numbers is not None:
            known |= {name: plain(value) for name, value in zip(GLANCED, self.numbers.tolist(), strict=True)}
        return known


def _by_feature(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Over features (last axis of vectors, channels of maps) that vary: max |mean|/std, largest and smallest std."""
    many = y.shape[1] if y.dim() > 3 else y.shape[-1] if y.dim() > 1 else 1
    flat = y.movedim(1, -1).reshape(-1, many) if y.dim() > 3 else y.reshape(-1, many)
    stds = flat.std(0, correction=0)
    varies = stds > 0
    offsets = torch.where(varies, flat.mean(0).abs() / stds, 0.0)
    return offsets.max(), stds.max(), torch.where(varies, stds, torch.inf).min()


def plain(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if math.isfinite(value) else None


def glances(value: Any) -> list[Glance]:
    return [Glance(name or "0", tensor) for name, tensor in list(tensors(value))[:MOST] if type(tensor) is Tensor]


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
            "kind": call.spot.kind,
            "bounds": call.spot.bounds,
            "drops": call.spot.drops,
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
        spot.name: spot.hidden or spot.silent or missed for spot in spots if spot.chosen and spot.name not in called
    }


class Start:
    """The parameters before the first step: what each looks like, and a copy of them if the model is small."""

    def __init__(self, model: nn.Module) -> None:
        self.looks: dict[int, Tensor] = {
            id(parameter): _looks(parameter.detach()) for parameter in model.parameters() if readable(parameter) is None
        }
        held = dict(model.named_parameters(remove_duplicate=False)) | dict(
            model.named_buffers(remove_duplicate=False)
        )  # and no state_dict, whose hooks may change the model: of sharded parameters they undo what a pass needs
        self.state: dict[str, Tensor] | None = None
        if not any(map(is_lazy, held.values())) and sum(x.numel() for x in held.values()) <= KEPT:
            self.state = {name: x.detach().clone() for name, x in held.items()}

    def look(self, parameter: Tensor) -> dict[str, Any]:
        seen = self.looks.get(id(parameter))
        if seen is None:
            return {}
        values = zip(("mean", "std", "max", "row_spread"), seen.tolist(), strict=True)
        return {name: plain(value) for name, value in values}


def _looks(weight: Tensor) -> Tensor:
    """Mean, spread and largest entry; and the largest difference between the first unit's weights and another's."""
    x = weight.float()
    rows = x.reshape(x.shape[0], -1) if x.dim() > 1 else x.reshape(1, -1)
    apart = (rows - rows[:1]).abs().max()
    return torch.stack([x.mean(), x.std(correction=0), x.abs().max(), apart])


def parameters(
    names: Mapping[int, str], model: nn.Module, held: Iterable[int] | None, start: Start | None = None
) -> list[dict[str, Any]]:
    """Each parameter: shape, whether it asks for gradients, is in an optimiser (None: none given), how it begins."""
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
                "start": {} if start is None else start.look(parameter),
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
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
