"""The last 64 steps of every parameter, kept on the device until a spike.

Most steps are not watched.  Of each of them the ring keeps what is cheap at the optimiser's step: the norm of every
gradient, 64 entries of every parameter, the rates and the loss.  Of a sharded parameter, each process keeps entries of
its own part.  There is no ring without an optimiser, or of steps with a closure.

The loss and the norm of the whole gradient each have a band, where they usually lie.  A number above its band is a
spike.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sonde.core.seed_statistics import band_limit
from sonde.metrics.reductions import FOREACH, tensor_norms
from sonde.observe.watched_modules import is_sharded, own_part, unreadable_part

STEPS = 64  # that the ring holds
_ENTRIES = 64  # of a parameter
DENSE = 16  # steps that are watched after a spike

_FEWEST, _RECENT = 16, 32  # values that make a band: at least, and the last ones
_RARE = 8  # spikes after which the time between two is not doubled any more
_AGAIN = 4  # values after which a limit is computed anew
_WAITING = 32  # values of a device whose copies cannot be asked whether they are done, read at once


@dataclass(slots=True)
class Trace:
    """What the ring kept of one optimiser's parameters in one step."""

    names: list[str]  # of the parameters whose entries are compared
    rates: dict[str, float | Tensor]  # group → learning rate
    entries: Tensor | NDArray[Any] | None = None
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
        now, before = torch.as_tensor(self.entries), torch.as_tensor(last.entries)
        self.moved = tensor_norms(torch.split(now - before, self.sizes))
        self.before = tensor_norms(torch.split(before, self.sizes))

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
        alike = {(part.device, part.dtype) for _, part in held} if len(held) == len(parts) and not sharded else set()
        quick = len(alike) == 1 and {dtype for _, dtype in alike} <= {torch.float32, torch.float64}
        self._quick = quick and all(part.numel() <= FOREACH for _, part in held)  # norms need one kernel
        self._all = [name for _, name in self._named]
        self.names = [name for name, _ in views]
        self._views = [view for _, view in views]
        self.sizes = [view.numel() for view in self._views]
        on_host = self._quick and all(view.is_cpu for view in self._views)
        self._arrays = [view.numpy() for view in self._views] if on_host else []  # numpy joins them in half the time

    def read(self) -> Tensor | NDArray[Any] | None:
        """A copy of the entries, one parameter after the other."""
        if self._arrays:
            return np.concatenate(self._arrays)
        return torch.cat(self._views) if self._views else None

    def gradients(self, members: list[nn.Parameter]) -> tuple[list[str], Tensor | None]:
        """Norms of gradients, or of the parts of them that this process counts, and whose they are."""
        if self._quick:
            grads: list[Any] = [members[place].grad for place, _ in self._named]
            if all(type(grad) is Tensor and grad.layout is torch.strided for grad in grads):
                return self._all, torch.stack(torch._foreach_norm(grads))
        found = [(name, self._gradient(place, members[place])) for place, name in self._named]
        have = [(name, grad) for name, grad in found if grad is not None]
        return [name for name, _ in have], tensor_norms([grad for _, grad in have]) if have else None

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


class _Band:
    """Where a number usually lies, by its last values."""

    def __init__(self, factor: float) -> None:
        self.limit = math.inf
        self._factor, self._count = factor, 0
        self._spikes, self._quiet_until = 0, 0
        self._values: deque[float] = deque(maxlen=_RECENT)

    def is_spike(self, step: int, value: float) -> bool:
        """Whether the value is above the band and no spike was shortly before; the more there were, the longer."""
        if not self._leaves(value) or step < self._quiet_until:
            return False
        self._spikes += 1
        self._quiet_until = step + DENSE * 2 ** min(self._spikes, _RARE)
        return True

    def _leaves(self, value: float) -> bool:
        """Whether the value is above the band, which it then becomes part of."""
        known = len(self._values) >= _FEWEST
        finite = math.isfinite(value)
        outside = known and (not finite or value > self.limit)
        if finite:
            self._values.append(value)
            self._count += 1
            if self._count % _AGAIN == 0 and len(self._values) >= _FEWEST:
                self.limit = band_limit(list(self._values), self._factor)
        return outside


class _Bands:
    """The band of the loss, and that of the norm of the whole gradient.  Nothing waits for the device."""

    def __init__(self) -> None:
        self._bands = {"loss": _Band(1.3), "gradient": _Band(4.0)}
        self._waiting: deque[tuple[str, int, Tensor, Any]] = deque()
        self._found: list[dict[str, Any]] = []

    def add(self, name: str, step: int, value: Tensor) -> None:
        """Compare a number of this step; one on a device is sent to the host, and compared when it is there."""
        if value.is_cpu:
            self._compare(name, step, value.item())
            return
        done = None
        if value.is_cuda:
            value = value.to("cpu", non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        self._waiting.append((name, step, value, done))

    def _compare(self, name: str, step: int, value: float) -> None:
        band = self._bands[name]
        limit = band.limit
        if band.is_spike(step, value):
            shown = value if math.isfinite(value) else None
            self._found.append({"step": step, "of": name, "value": shown, "limit": limit})

    def spikes(self) -> list[dict[str, Any]]:
        """Of the numbers that are here by now, those that left their band since the last call."""
        waiting = self._waiting
        while waiting and (waiting[0][3].query() if waiting[0][3] is not None else len(waiting) > _WAITING):
            name, step, value, _ = waiting.popleft()
            self._compare(name, step, value.item())
        found, self._found = self._found, []
        return found


class Ring:
    """The last steps, and what is known of their usual losses and gradients."""

    def __init__(self, *, active: bool) -> None:
        self._active = active
        self._steps: deque[RingStep] = deque(maxlen=STEPS + 1)
        self._taken = -1  # the last step that was written
        self._traces: dict[int, Trace] = {}
        self._losses: list[Tensor] = []  # of the step under way
        self._waiting: list[tuple[int | None, Tensor]] = []  # those since the last optimiser's step, with the scale's
        self._logged: list[tuple[int, Tensor]] = []  # step, loss
        self._entries: dict[int, _Entries] = {}
        self._bands = _Bands()

    def record(
        self, index: int, optimiser: torch.optim.Optimizer, names: Mapping[int, str], scale: int | None = None
    ) -> None:
        """An optimiser has stepped: keep the norms of its gradients and a few entries of its parameters.

        A loss with an older version of the scale belongs to a step that a GradScaler has skipped.
        """
        self._losses += [loss for version, loss in self._waiting if version in (None, scale)]
        self._waiting = []
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
            trace.with_gradient, trace.gradients = known.gradients(members)
        self._traces[index] = trace

    def record_loss(self, loss: Tensor, scale: int | None = None) -> None:
        """The loss module was called, at this version of the scale of a GradScaler."""
        if self._active:
            self._waiting[:-STEPS] = []  # of steps that a loop skips
            self._waiting.append((scale, loss.detach() if loss.dim() == 0 else loss.detach().mean()))

    def skip(self) -> None:
        """A GradScaler has skipped the step of an optimiser."""
        self._waiting = []

    def log(self, step: int, loss: Any) -> None:
        """A loss was logged; its row is written anyway."""
        if self._active:
            known = loss.detach().float().mean() if isinstance(loss, Tensor) else torch.tensor(float(loss))
            self._logged.append((step, known))

    def drop_logged(self, step: int) -> None:
        """Forget what was logged of this step, which a GradScaler has skipped."""
        self._logged = [one for one in self._logged if one[0] != step]

    def end_step(self, step: int, *, watched: bool) -> list[dict[str, Any]]:
        """Keep the step; which numbers have left their band, and when."""
        if not self._active:
            return []
        losses, traces = self._losses + [loss for _, loss in self._waiting], self._traces
        self._steps.append(RingStep(step, watched, traces, losses))
        self._losses, self._waiting, self._traces = [], [], {}
        for of_step, loss in self._logged:
            self._bands.add("loss", of_step, loss)
        self._logged = []
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
