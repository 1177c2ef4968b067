"""Optimisers around their steps: weights, gradients, how far each parameter moved, and the scale of the loss."""

import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from sonde.observe.reductions import norms, readable

SAMPLED = 2  # parameters of an optimiser that are asked whether old gradients are left
LARGE = 1 << 16  # entries whose squares are not added up in one go in single precision


@dataclass(slots=True)
class Parameters:
    """One optimiser's parameters at one step; vectors over `names`."""

    names: list[str]
    weights: Tensor
    gradients: Tensor | None = None
    with_gradient: list[str] = field(default_factory=list)
    odd_gradients: list[str] = field(default_factory=list)  # of those that have one which is not read
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
        grads = {name: p.grad for name, p in self.tensors.items() if p.grad is not None}
        have = {name: grad for name, grad in grads.items() if _whole(grad)}
        found.with_gradient = list(have)
        found.odd_gradients = [name for name in grads if name not in have]
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
    if parameter.is_meta:
        return "a parameter on the device meta has no values"
    if parameter.numel() == 0:
        return "the parameter is empty: it is sharded, or not yet initialised"
    return None


def _whole(grad: Tensor) -> bool:
    return type(grad) is Tensor and not grad.is_meta and (grad.layout == torch.strided or grad.is_sparse)


def _dense(grad: Tensor) -> Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad


def shared(names: Iterable[tuple[str, Tensor]]) -> tuple[dict[int, str], list[list[str]]]:
    """The first name of each parameter by identity, and the names of those that have several."""
    known: dict[int, list[str]] = {}
    for name, parameter in names:
        known.setdefault(id(parameter), []).append(name)
    return {place: found[0] for place, found in known.items()}, [found for found in known.values() if len(found) > 1]


class Updates:
    """What the optimisers did in the step under way; without any, what is known of the parameters."""

    def __init__(
        self,
        names: Mapping[int, str],
        parameters: Sequence["weakref.ref[nn.Parameter]"],
        optimisers: Sequence[torch.optim.Optimizer],
        scaler: Any,
    ) -> None:
        self.scaler = scaler
        self._names, self._parameters = names, parameters
        self._optimisers = [weakref.ref(optimiser) for optimiser in optimisers]
        self._awaited = set(range(len(optimisers)))
        self.start()

    def start(self) -> None:
        """A new step."""
        self.scale: Tensor | None = None
        self._stepped: set[int] = set()
        self._held: dict[int, tuple[Watched, Parameters]] = {}
        self._rest: Parameters | None = None
        self._accumulated: dict[str, Tensor] = {}
        self._odd: list[str] = []  # parameters whose gradient is not read
        self.left: dict[str, list[Tensor]] = {}

    @property
    def optimisers(self) -> list[torch.optim.Optimizer]:
        return [optimiser for optimiser in (known() for known in self._optimisers) if optimiser is not None]

    def held(self) -> set[int]:
        """The parameters that an optimiser holds."""
        return {id(p) for optimiser in self.optimisers for group in optimiser.param_groups for p in group["params"]}

    def stepping(self, index: int, optimiser: torch.optim.Optimizer, *, has_closure: bool) -> None:
        """An optimiser is about to step.  With a closure, gradients come during the step."""
        if not self._held:
            self.weigh_rest()
        members = (p for group in optimiser.param_groups for p in group["params"] if id(p) in self._names)
        watched = Watched([(self._names[id(parameter)], parameter) for parameter in members])
        found = watched.before(keep=True)
        own = getattr(optimiser, "grad_scale", None)
        found.scaled = isinstance(own, Tensor)
        scale = scale_of(self.scaler if self.scaler is not None else _calling_scaler())
        self.scale = own.detach().clone() if scale is None and isinstance(own, Tensor) else scale
        if not has_closure:
            watched.gradients(found)
        self._held[index] = watched, found

    def stepped(self, index: int, *, has_closure: bool) -> bool:
        """An optimiser has stepped; whether it had any gradient to step by."""
        if index not in self._held:
            return True
        watched, found = self._held[index]
        if has_closure:
            watched.gradients(found)
        watched.after(found)
        return found.gradients is not None or bool(watched.unreadable)

    def ends(self, index: int) -> bool:
        """Whether this optimiser's step ends the step: it does when each has stepped that is not left behind.

        One that steps twice while another waits leaves the other behind, until that one steps again.
        """
        if len(self._optimisers) == 1:
            return True
        again = index in self._stepped
        self._stepped.add(index)
        self._awaited.add(index)
        if again:
            self._awaited &= self._stepped
        return self._awaited <= self._stepped

    def sampled(self) -> list[tuple[str, nn.Parameter]]:
        """A few small parameters of each optimiser, by which to tell whether gradients are cleared."""
        found = []
        for optimiser in self.optimisers:
            members = [
                p
                for group in optimiser.param_groups
                for p in group["params"]
                if type(p) is nn.Parameter and p.requires_grad and id(p) in self._names
            ]
            smallest = sorted(members, key=lambda p: p.numel())[:SAMPLED]
            found += [(self._names[id(p)], p) for p in smallest]
        return found

    def arriving(self, name: str, parameter: Tensor, grad: Tensor) -> None:
        """A gradient is about to be added to what the parameter holds."""
        old = parameter.grad
        if type(grad) is not Tensor or grad.layout != torch.strided:
            return
        if old is not None and (type(old) is not Tensor or old.layout != torch.strided):
            return
        new = torch.linalg.vector_norm(grad.detach())
        there = torch.zeros_like(new) if old is None else torch.linalg.vector_norm(old.detach()).to(new.dtype)
        self.left.setdefault(name, []).append(torch.stack([there, new]))

    def weigh_rest(self) -> None:
        """Parameters that no optimiser holds."""
        held = self.held()
        present = (parameter for parameter in (known() for known in self._parameters) if parameter is not None)
        rest = [(self._names[id(p)], p) for p in present if id(p) not in held and id(p) in self._names]
        if rest:
            watched = Watched(rest)
            self._rest = watched.before(keep=False)
            if self._optimisers:
                watched.gradients(self._rest)

    def heard_backward(self) -> None:
        """The first gradient of the step comes back: the scale is now what it was for the loss."""
        if self.scale is None:
            self.scale = scale_of(self.scaler)
        if not self._optimisers and self._rest is None:
            self.weigh_rest()

    def accumulated(self, name: str, parameter: Tensor) -> None:
        """A gradient is complete, where no optimiser is there to tell when it is needed."""
        if parameter.grad is None:
            return
        if _whole(parameter.grad):
            self._accumulated[name] = lengths([_dense(parameter.grad.detach())])[0]
        else:
            self._odd.append(name)

    def collect(self) -> list[Parameters]:
        if self._rest is not None and not self._optimisers:
            self._rest.odd_gradients = self._odd
        if self._rest is not None and self._accumulated:
            self._rest.with_gradient = list(self._accumulated)
            self._rest.gradients = torch.stack(list(self._accumulated.values()))
            self._rest.scaled = True
        found = [known for _, known in self._held.values()]
        return found if self._rest is None else [*found, self._rest]


def scale_of(scaler: Any) -> Tensor | None:
    """The scale of a GradScaler as it is now; None without one, or where it is switched off."""
    if scaler is None or not getattr(scaler, "is_enabled", lambda: True)():
        return None
    kept = getattr(scaler, "_scale", None)
    return kept.detach().clone() if isinstance(kept, Tensor) else torch.tensor(float(scaler.get_scale()))


def _calling_scaler() -> Any:
    """The GradScaler that makes the optimiser step, seen in the stack of calls."""
    frame: Any = sys._getframe(2)
    for _ in range(12):
        if frame is None:
            return None
        if frame.f_code.co_filename.endswith("grad_scaler.py"):
            found = frame.f_locals.get("self")
            return found if hasattr(found, "get_scale") else None
        frame = frame.f_back
    return None
