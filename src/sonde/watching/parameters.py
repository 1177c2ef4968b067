"""Weights, their gradients, and by how much a step of the optimiser moved them: measured, not derived."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from sonde.watching.measure import norms, readable

LARGE = 1 << 16  # entries whose squares are not added up in one go in single precision


@dataclass(slots=True)
class Parameters:
    """One optimiser's parameters at one step; vectors over `names`."""

    names: list[str]
    weights: Tensor
    gradients: Tensor | None = None
    with_gradient: list[str] = field(default_factory=list)
    updates: Tensor | None = None  # None: no optimiser that was given holds them
    unreadable: dict[str, str] = field(default_factory=dict)
    scaled: bool = False  # gradients still carry the scale of a GradScaler


class Watched:
    """The parameters of one optimiser around its step."""

    def __init__(self, named: Iterable[tuple[str, Tensor]]) -> None:
        self.unreadable: dict[str, str] = {}
        self.tensors: dict[str, Tensor] = {}
        for name, parameter in named:
            reason = readable(parameter) if type(parameter) is not torch.nn.Parameter else _odd(parameter)
            if reason is None:
                self.tensors[name] = parameter
            else:
                self.unreadable[name] = reason

    def before(self, *, keep: bool) -> Parameters:
        """Norms before the step; with `keep`, a copy to compare with afterwards."""
        weights = [parameter.detach() for parameter in self.tensors.values()]
        found = Parameters(list(self.tensors), lengths(weights), unreadable=self.unreadable)
        self._copies = [weight.clone() for weight in weights] if keep else []
        return found

    def gradients(self, found: Parameters) -> None:
        have = {name: p.grad for name, p in self.tensors.items() if p.grad is not None and _whole(p.grad)}
        found.with_gradient = list(have)
        found.gradients = lengths([_dense(grad.detach()) for grad in have.values()]) if have else None

    def after(self, found: Parameters) -> None:
        """‖ΔW‖ of the step that lies between."""
        copies, self._copies = self._copies, []
        if not copies:
            return
        with torch.no_grad():
            torch._foreach_sub_(copies, [parameter.detach() for parameter in self.tensors.values()])
        found.updates = lengths(copies)

    _copies: list[Tensor]


def lengths(tensors: Sequence[Tensor]) -> Tensor:
    """‖t‖ of each tensor, as one vector on the device of the first."""
    if not tensors:
        return torch.zeros(0)
    device = tensors[0].device
    small = [t for t in tensors if t.numel() <= LARGE]
    quick = iter(torch._foreach_norm(small)) if small else iter(())
    found = [next(quick) if t.numel() <= LARGE else _length(t) for t in tensors]
    kind = torch.float64 if any(t.dtype == torch.float64 for t in found) else torch.float32
    return torch.stack([norm.to(device=device, dtype=kind) for norm in found])


def _length(tensor: Tensor) -> Tensor:
    if tensor.dim() < 2:
        whole = tensor.numel() // 1024 * 1024
        parts = norms(tensor[:whole].reshape(-1, 1024)), norms(tensor[whole:])
        return cast(Tensor, torch.linalg.vector_norm(torch.cat(parts)))
    return cast(Tensor, torch.linalg.vector_norm(norms(tensor)))


def _odd(parameter: Tensor) -> str | None:
    if parameter.layout != torch.strided or parameter.is_complex():
        return "a sparse or complex parameter is not read"
    if parameter.numel() == 0:
        return "the parameter is empty: it is sharded, or not yet initialised"
    return None


def _whole(grad: Tensor) -> bool:
    return type(grad) is Tensor and (grad.layout == torch.strided or grad.is_sparse)


def _dense(grad: Tensor) -> Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad


def shared(names: Iterable[tuple[str, Tensor]]) -> tuple[dict[int, str], list[list[str]]]:
    """The first name of each parameter by identity, and the names of those that have several."""
    known: dict[int, list[str]] = {}
    for name, parameter in names:
        known.setdefault(id(parameter), []).append(name)
    return {place: found[0] for place, found in known.items()}, [
        found for found in known.values() if len(found) > 1
    ]
