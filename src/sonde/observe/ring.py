"""The last 64 steps of every parameter, kept on the device until a spike.

Most steps are not watched.  Of each of them the ring keeps what is cheap at the optimiser's step: the norm of every
gradient, 64 entries of every parameter, the rates and the loss.  Of a sharded parameter, each process keeps entries of
its own part.  There is no ring without an optimiser, or of steps with a closure.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sonde.metrics.reductions import tensor_norms
from sonde.observe.bands import Bands
from sonde.observe.local_parts import is_sharded, own_part, unreadable_part

STEPS = 64  # that the ring holds
_ENTRIES = 64  # of a parameter


@dataclass(slots=True)
class Trace:
    """What the ring kept of one optimiser's parameters in one step."""

    names: list[str]  # of the parameters whose entries are compared
    rates: dict[str, float | Tensor]  # group → learning rate
    entries: Tensor | None = None
    sizes: list[int] = field(default_factory=list)  # entries of each parameter
    gradients: Tensor | None = None  # norms
    with_gradient: list[str] = field(default_factory=list)
    moved: Tensor | None = None  # ‖ΔW‖ of the entries since the step before
    before: Tensor | None = None  # ‖W‖ of the entries in the step before
    samples: list[int] = field(default_factory=list)  # entries of each parameter in all processes

    def compare(self, last: "Trace") -> None:
        """Compute how far the entries moved since the step before; nothing if the parameters are others."""
        if self.entries is None or last.entries is None or (self.names, self.sizes) != (last.names, last.sizes):
            return
        self.moved = tensor_norms(torch.split(self.entries - last.entries, self.sizes))
        self.before = tensor_norms(torch.split(last.entries, self.sizes))

    def tensors(self) -> Iterator[Tensor]:
        """The tensors that rows are made from."""
        rates = (rate for rate in self.rates.values() if isinstance(rate, Tensor))
        yield from (t for t in (self.gradients, self.moved, self.before, *rates) if t is not None)


@dataclass(slots=True)
class RingStep:
    """One step in the ring."""

    step: int
    watched: bool
    traces: dict[int, Trace] = field(default_factory=dict)  # by the number of the optimiser
    losses: list[Tensor] = field(default_factory=list)


class _Entries:
    """Views of a few entries of every parameter of an optimiser, for as long as its parameters stay in memory."""

    def __init__(self, members: list[nn.Parameter], places: list[int], names: Mapping[int, str]) -> None:
        self.places = places
        self._named = [(place, names[id(p)]) for place, p in enumerate(members) if id(p) in names]
        sharded: dict[int, Any] = {place: p for place, p in enumerate(members) if is_sharded(p)}
        self._placements = {place: p.placements for place, p in sharded.items() if unreadable_part(p) is None}
        self._counted = {place: own_part(p).numel() == p.to_local().numel() for place, p in sharded.items()}
        parts = [(name, _plain_part(members[place])) for place, name in self._named]
        held = [(name, part) for name, part in parts if part is not None]
        device = held[0][1].device if held else None
        views = [(name, _spread(part)) for name, part in held if part.device == device]
        self.names = [name for name, _ in views]
        self._views = [view for _, view in views]
        self.sizes = [view.numel() for view in self._views]

    def read(self) -> Tensor | None:
        """A copy of the entries, one parameter after the other."""
        return torch.cat(self._views) if self._views else None

    def gradients(self, members: list[nn.Parameter]) -> tuple[list[str], list[Tensor]]:
        """Gradients, or the parts of them that this process counts, and whose they are."""
        found = [(name, self._gradient(place, members[place])) for place, name in self._named]
        have = [(name, grad) for name, grad in found if grad is not None]
        return [name for name, _ in have], [grad for _, grad in have]

    def _gradient(self, place: int, parameter: nn.Parameter) -> Tensor | None:
        grad = parameter.grad
        if grad is None or grad.is_meta or grad.layout != torch.strided:
            return None
        if place not in self._counted:
            return grad if type(grad) is Tensor else None
        held: Any = grad
        if not is_sharded(grad) or held.placements != self._placements.get(place):
            return None
        part: Tensor = held.to_local()
        return part if self._counted[place] else part.new_zeros(0)


def _plain_part(parameter: nn.Parameter) -> Tensor | None:
    """The entries that this process counts, if they can be read in place."""
    if is_sharded(parameter):
        if unreadable_part(parameter) is not None:
            return None
    elif type(parameter) is not nn.Parameter:
        return None
    part = own_part(parameter)
    return part if part.is_floating_point() and part.is_contiguous() else None


def _spread(part: Tensor) -> Tensor:
    flat = part.view(-1)
    return flat[:: max(1, flat.numel() // _ENTRIES)][:_ENTRIES]


class Ring:
    """The last steps, and what is known of their usual losses and gradients."""

    def __init__(self, *, active: bool) -> None:
        self._active = active
        self._steps: deque[RingStep] = deque(maxlen=STEPS + 1)
        self._taken = -1  # the last step that was written
        self._traces: dict[int, Trace] = {}
        self._losses: list[Tensor] = []
        self._entries: dict[int, _Entries] = {}
        self._bands = Bands()

    def record(self, index: int, optimiser: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        """An optimiser has stepped: keep the norms of its gradients and a few entries of its parameters."""
        if not self._active or (torch.cuda._initialized and torch.cuda.is_current_stream_capturing()):
            return
        groups = optimiser.param_groups
        members = groups[0]["params"] if len(groups) == 1 else [p for group in groups for p in group["params"]]
        places = [p.data_ptr() if type(p) is nn.Parameter else own_part(p).data_ptr() for p in members]
        known = self._entries.get(index)
        if known is None or known.places != places:
            known = self._entries[index] = _Entries(members, places, names)
        trace = Trace(known.names, _rates(index, groups), known.read(), known.sizes)
        if not isinstance(getattr(optimiser, "grad_scale", None), Tensor):  # else it may still be in the gradients
            trace.with_gradient, grads = known.gradients(members)
            trace.gradients = tensor_norms(grads) if grads else None
        self._traces[index] = trace

    def record_loss(self, loss: Tensor) -> None:
        """The loss module was called in this step."""
        if self._active:
            self._losses[:-STEPS] = []  # of steps that a loop skips
            self._losses.append(loss.detach() if loss.dim() == 0 else loss.detach().mean())

    def log(self, step: int, loss: Any) -> None:
        """A loss was logged; its row is written anyway."""
        if self._active:
            known = loss.detach().float().mean() if isinstance(loss, Tensor) else torch.tensor(float(loss))
            self._bands.add("loss", step, known)

    def end_step(self, step: int, *, watched: bool) -> list[dict[str, Any]]:
        """Keep the step; which numbers have left their band, and when."""
        if not self._active:
            return []
        losses, traces = self._losses, self._traces
        self._steps.append(RingStep(step, watched, traces, losses))
        self._losses, self._traces = [], {}
        if losses:
            self._bands.add("loss", step, losses[0] if len(losses) == 1 else torch.stack(losses).mean())
        norms = [trace.gradients for trace in traces.values() if trace.gradients is not None]
        if norms:
            known = norms[0] if len(norms) == 1 else torch.cat([one.to(norms[0].device) for one in norms])
            self._bands.add("gradient", step, torch.linalg.vector_norm(known))
        return self._bands.spikes()

    def take(self, step: int) -> list[RingStep]:
        """The last steps up to this one that were not taken before, each compared with the step before it.

        They are the same steps in every process; one that the ring does not have is empty.
        """
        kept = {one.step: one for one in self._steps}
        for number, here in kept.items():
            last = kept.get(number - 1)
            before = {} if last is None else last.traces
            for index, trace in here.traces.items():
                if trace.moved is None and index in before:
                    trace.compare(before[index])
        due = range(max(self._taken + 1, step - STEPS + 1), step + 1)
        self._taken = max(self._taken, step)
        return [kept.get(number) or RingStep(number, watched=True) for number in due]


def _rates(index: int, groups: list[dict[str, Any]]) -> dict[str, float | Tensor]:
    """The rate of each group; a rate that is a tensor is copied, as schedules change it in place."""
    found: dict[str, float | Tensor] = {}
    for number, group in enumerate(groups):
        rate = group.get("lr")
        if isinstance(rate, Tensor):
            found[f"group {index}.{number}"] = rate.detach().clone().reshape(1)
        elif isinstance(rate, int | float):
            found[f"group {index}.{number}"] = float(rate)
    return found
