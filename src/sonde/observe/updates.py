"""Optimisers around their steps: weights, gradients, how far each parameter moved, and the scale of the loss."""

import math
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sonde.metrics.reductions import moment_ratio, readable, tensor_norms
from sonde.observe.watched_modules import WatchedModel, is_flat, is_sharded, own_part, unreadable_part

_UNREADABLE_GRADIENT = "a gradient of this kind is not read"
_SAMPLED = 2  # parameters of an optimiser that are read for stale gradients


@dataclass(slots=True)
class ParameterNorms:
    """Norms of one optimiser's parameters at one step: vectors over `names`."""

    names: list[str]
    weights: Tensor
    gradients: Tensor | None = None
    with_gradient: list[str] = field(default_factory=list)
    unreadable_gradients: dict[str, str] = field(default_factory=dict)  # of those that have one which is not read: why
    updates: Tensor | None = None  # None: no optimiser that was given holds them
    unreadable: dict[str, str] = field(default_factory=dict)
    scaled: bool = False  # gradients still carry the scale of a GradScaler
    sizes: list[int] = field(default_factory=list)  # entries of each
    ratios: Tensor | None = None  # in costly steps, the median |m|/√v of Adam's state; NaN where it has none
    sharded: frozenset[str] = frozenset()  # those whose norms are of the part that this process holds

    def drop(self, reasons: Mapping[str, str]) -> None:
        """Make parameters unreadable, each with its reason."""
        if not reasons:
            return
        kept = [place for place, name in enumerate(self.names) if name not in reasons]
        with_gradient = [place for place, name in enumerate(self.with_gradient) if name not in reasons]
        self.names = [self.names[place] for place in kept]
        self.with_gradient = [self.with_gradient[place] for place in with_gradient]
        self.weights = self.weights[kept]
        self.sizes = [self.sizes[place] for place in kept]
        self.ratios = None if self.ratios is None else self.ratios[kept]
        self.updates = None if self.updates is None else self.updates[kept]
        self.gradients = None if self.gradients is None else self.gradients[with_gradient]
        self.unreadable = {**self.unreadable, **reasons}
        self.sharded -= reasons.keys()


class _AroundStep:
    """The parameters of one optimiser, before and after its step."""

    def __init__(self, named: Iterable[tuple[str, Tensor]]) -> None:
        self.unreadable: dict[str, str] = {}
        self.tensors: dict[str, Tensor] = {}
        for name, parameter in named:
            reason = _unreadable_reason(parameter)
            if reason is None:
                self.tensors[name] = parameter
            else:
                self.unreadable[name] = reason

    def before(self, *, keep: bool) -> ParameterNorms:
        """Norms before the step; with `keep`, a copy to compare with afterwards."""
        weights = [own_part(parameter) for parameter in self.tensors.values()]
        found = ParameterNorms(list(self.tensors), tensor_norms(weights), unreadable=self.unreadable)
        found.sizes = [parameter.numel() for parameter in self.tensors.values()]
        found.sharded = frozenset(name for name, parameter in self.tensors.items() if is_sharded(parameter))
        self._copies = [weight.clone() for weight in weights] if keep else []
        return found

    def gradients(self, found: ParameterNorms) -> None:
        grads = {name: p.grad for name, p in self.tensors.items() if p.grad is not None}
        reasons = {name: _unreadable_gradient(grad, self.tensors[name]) for name, grad in grads.items()}
        have = [name for name, reason in reasons.items() if reason is None]
        found.with_gradient = have
        found.unreadable_gradients = {name: reason for name, reason in reasons.items() if reason is not None}
        found.gradients = tensor_norms([_dense(own_part(grads[name])) for name in have]) if have else None

    def after(self, found: ParameterNorms) -> None:
        """‖ΔW‖ of the step that lies between."""
        copies, self._copies = self._copies, []
        if not copies:
            return
        with torch.no_grad():
            torch._foreach_sub_(copies, [own_part(parameter) for parameter in self.tensors.values()])
        found.updates = tensor_norms(copies)

    def adam(self, found: ParameterNorms, optimiser: torch.optim.Optimizer) -> None:
        """How large the steps of Adam are, by its own moments."""
        states = [optimiser.state.get(parameter, {}) for parameter in self.tensors.values()]
        none = torch.full((), math.nan, dtype=found.weights.dtype, device=found.weights.device)
        moments = [(state.get("exp_avg"), state.get("exp_avg_sq")) for state in states]
        ratios = [moment_ratio(m, v).to(none) if _has_values(m, v) else none for m, v in moments]
        found.ratios = torch.stack(ratios) if ratios else None

    _copies: list[Tensor]


def _unreadable_reason(parameter: Tensor) -> str | None:
    if is_sharded(parameter):
        return unreadable_part(parameter)
    if is_flat(parameter):
        return "a parameter of FSDP1 is not read: it is a part; use fully_shard (FSDP2)"
    if type(parameter) is not nn.Parameter:
        return readable(parameter)
    if parameter.layout != torch.strided or parameter.is_complex():
        return "a sparse or complex parameter is not read"
    if parameter.is_meta:
        return "a parameter on the device meta has no values"
    if parameter.numel() == 0:
        return "the parameter is empty: it is sharded, or not yet initialised"
    return None


def _unreadable_gradient(grad: Tensor, parameter: Tensor) -> str | None:
    if is_sharded(grad) and is_sharded(parameter):
        return unreadable_part(grad)
    read = type(grad) is Tensor and not grad.is_meta and (grad.layout == torch.strided or grad.is_sparse)
    return None if read and not is_sharded(parameter) else _UNREADABLE_GRADIENT


def _has_values(*moments: Any) -> bool:
    return all(type(m) is Tensor and m.is_floating_point() and not m.is_meta and m.numel() > 0 for m in moments)


def _dense(grad: Tensor) -> Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad


def _members(optimiser: torch.optim.Optimizer) -> Iterator[Any]:
    return (p for group in optimiser.param_groups for p in group["params"])


class Updates:
    """The parameters in the step under way, around the steps of the optimisers; without any, at the backward pass."""

    def __init__(self, model: WatchedModel, optimisers: Sequence[torch.optim.Optimizer], scaler: Any) -> None:
        self.scaler = scaler
        self._model = model
        self._optimisers = [weakref.ref(optimiser) for optimiser in optimisers]
        self._awaited = set(range(len(optimisers)))
        self.several = len(optimisers) > 1
        self.costly = False  # whether what takes longer is computed in this step
        self._calling: Any = None  # the scaler that was seen to step an optimiser
        self.start()

    def start(self) -> None:
        """A new step."""
        self.scale: Tensor | None = None
        self._scale_version: int | None = None  # of the scaler's scale, at the latest backward pass
        self._stepped: set[int] = set()
        self._held: dict[int, tuple[_AroundStep, ParameterNorms]] = {}
        self._rest: ParameterNorms | None = None
        self._accumulated: dict[str, Tensor] = {}
        self._unreadable: dict[str, str] = {}  # parameters whose gradient is not read, and why
        self.stale: dict[str, list[Tensor]] = {}

    @property
    def optimisers(self) -> list[torch.optim.Optimizer]:
        """The optimisers that still exist."""
        return [optimiser for optimiser in (known() for known in self._optimisers) if optimiser is not None]

    def held(self) -> set[int]:
        """The parameters that an optimiser holds."""
        return {id(p) for optimiser in self.optimisers for p in _members(optimiser)}

    def before_step(self, index: int, optimiser: torch.optim.Optimizer, *, has_closure: bool) -> None:
        """An optimiser is about to step.  With a closure, gradients come during the step."""
        if not self._held:
            self.record_rest()
        members = (p for p in _members(optimiser) if id(p) in self._model.names)
        watched = _AroundStep((self._model.names[id(p)], p) for p in members)
        found = watched.before(keep=True)
        own = getattr(optimiser, "grad_scale", None)
        found.scaled = isinstance(own, Tensor)
        self._calling = self.scaler if self.scaler is not None else _calling_scaler()
        scale = _scale_of(self._calling)
        self.scale = own.detach().clone() if scale is None and isinstance(own, Tensor) else scale
        if not has_closure:
            watched.gradients(found)
        self._held[index] = watched, found

    def after_evaluation(self, index: int) -> None:
        """The closure of an optimiser's step was evaluated for the first time."""
        if index in self._held:
            watched, found = self._held[index]
            watched.gradients(found)

    def after_step(self, index: int) -> bool:
        """An optimiser has stepped; whether it had any gradient to step by."""
        if index not in self._held:
            return True
        watched, found = self._held[index]
        watched.after(found)
        optimiser = self._optimisers[index]()
        if self.costly and optimiser is not None:
            watched.adam(found, optimiser)
        return found.gradients is not None or bool(watched.unreadable or found.unreadable_gradients)

    def is_skipped(self, index: int, optimiser: torch.optim.Optimizer) -> bool:
        """Whether a fused optimiser, which a GradScaler always calls, found an overflow and did nothing.

        This waits for the device.
        """
        found = getattr(optimiser, "found_inf", None)
        skipped = isinstance(found, Tensor) and bool(found.item())
        if skipped:
            self._held.pop(index, None)
        return skipped

    @property
    def scale_version(self) -> int | None:
        """A number that grows when a GradScaler updates its scale, after each step or skipped step; None without."""
        scale = getattr(self.scaler if self.scaler is not None else self._calling, "_scale", None)
        return scale._version if isinstance(scale, Tensor) else None

    def skipped_before(self) -> bool:
        """At a backward pass: whether a GradScaler skipped the step that the passes before it belong to.

        It has, if its scale was updated since the last backward pass and no optimiser has stepped.
        """
        before, self._scale_version = self._scale_version, self.scale_version
        skipped = before is not None and before != self._scale_version and not self._held
        if skipped:
            self.stale = {}
        return skipped

    def ends_step(self, index: int) -> bool:
        """Whether this optimiser's step ends the step: it does when each has stepped that is not left behind.

        One that steps twice while another waits leaves the other behind, until that one steps again.
        """
        if not self.several:
            return True
        again = index in self._stepped
        self._stepped.add(index)
        self._awaited.add(index)
        if again:
            self._awaited &= self._stepped
        return self._awaited <= self._stepped

    def sampled(self) -> list[tuple[str, nn.Parameter]]:
        """A few small parameters of each optimiser, to find out whether gradients are cleared."""
        found = []
        for optimiser in self.optimisers:
            members = [p for p in _members(optimiser) if type(p) is nn.Parameter and p.requires_grad]
            known = sorted((p for p in members if id(p) in self._model.names), key=lambda p: p.numel())
            found += [(self._model.names[id(p)], p) for p in known[:_SAMPLED]]
        return found

    def before_accumulation(self, name: str, parameter: Tensor, grad: Tensor) -> None:
        """A gradient is about to be added to what the parameter holds."""
        old = parameter.grad
        if type(grad) is not Tensor or grad.layout != torch.strided:
            return
        if old is not None and (type(old) is not Tensor or old.layout != torch.strided):
            return
        new = torch.linalg.vector_norm(grad.detach())
        there = torch.zeros_like(new) if old is None else torch.linalg.vector_norm(old.detach()).to(new.dtype)
        self.stale.setdefault(name, []).append(torch.stack([there, new]))

    def record_rest(self) -> None:
        """Norms of the parameters that no optimiser holds."""
        held = self.held()
        names = self._model.names
        rest = [(names[id(p)], p) for p in self._model.parameters if id(p) not in held and id(p) in names]
        if rest:
            watched = _AroundStep(rest)
            self._rest = watched.before(keep=False)
            if self._optimisers:
                watched.gradients(self._rest)

    def on_backward(self) -> None:
        """The first gradient of the step comes back: the scale is now what it was for the loss."""
        if self.scale is None:
            self.scale = _scale_of(self.scaler)
        if not self._optimisers and self._rest is None:
            self.record_rest()

    def after_accumulation(self, name: str, parameter: Tensor) -> None:
        """Without an optimiser: a parameter has its gradient."""
        if parameter.grad is None:
            return
        reason = _unreadable_gradient(parameter.grad, parameter)
        if reason is None:
            self._accumulated[name] = tensor_norms([_dense(own_part(parameter.grad))])[0]
        else:
            self._unreadable[name] = reason

    def collect(self) -> list[ParameterNorms]:
        """What was computed about the parameters in this step."""
        if self._rest is not None and not self._optimisers:
            self._rest.unreadable_gradients = self._unreadable
        if self._rest is not None and self._accumulated:
            self._rest.with_gradient = list(self._accumulated)
            self._rest.gradients = torch.stack(list(self._accumulated.values()))
            self._rest.scaled = True
        found = [known for _, known in self._held.values()]
        return found if self._rest is None else [*found, self._rest]


def _scale_of(scaler: Any) -> Tensor | None:
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
