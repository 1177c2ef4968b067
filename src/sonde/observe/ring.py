"""The last 64 steps of every parameter, kept on the device until a spike.

Most steps are not watched.  Of each of them the ring keeps what is cheap at the optimiser's step: the norm of every
gradient, 64 entries of every parameter, the rates and the loss.  Of a small model, whose step takes hardly longer than
such norms, gradients are read in every eighth step, and in the step of a spike.  Of a sharded parameter, each process
keeps entries of its own part.  There is no ring without an optimiser, or of steps with a closure.

The loss and the norm of the whole gradient each have a band, where they usually lie.  A number above its band is a
spike.
"""

import math
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sonde.core.seed_statistics import band_limit
from sonde.metrics.reductions import FOREACH, tensor_norms
from sonde.observe.watched_modules import is_initialised, is_sharded, own_part, unreadable_part

Loss = float | Tensor  # one on the host is a number

STEPS = 64  # that the ring holds
_ENTRIES = 64  # of a parameter
DENSE = 16  # steps that are watched after a spike
_SMALL, _SELDOM = 1 << 16, 8  # entries of a small model's parameters; steps between two readings of its gradients

_FEWEST, _RECENT = 16, 32  # values that make a band: at least, and the last ones
_RARE = 8  # spikes after which the time between two is not doubled any more
_AGAIN = 8  # values after which a limit is computed anew
_WAITING = 32  # values of a device whose copies cannot be asked whether they are done, read at once


@dataclass(slots=True)
class Trace:
    """What the ring kept of one optimiser's parameters in one step."""

    names: Sequence[str]  # of the parameters whose entries are compared
    rates: dict[str, float | Tensor]  # group → learning rate
    entries: Tensor | NDArray[Any] | None = None
    sizes: list[int] = field(default_factory=list)  # entries of each parameter
    gradients: Tensor | None = None  # norms
    with_gradient: Sequence[str] = ()
    moved: Tensor | None = None  # ‖ΔW‖ of the entries since the step before
    before: Tensor | None = None  # ‖W‖ of the entries in the step before
    samples: Sequence[int] = ()  # entries of each parameter in all processes

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
    losses: list["Loss"] = field(default_factory=list)


class _Entries:
    """Views of a few entries of every parameter of an optimiser, for as long as its parameters stay in memory."""

    def __init__(
        self, optimiser: torch.optim.Optimizer, names: Mapping[int, str], step: int, *, seldom: bool = False
    ) -> None:
        self._known_as = weakref.ref(optimiser)
        self.fits_in = step  # the last step in which its views were those of the parameters
        members = _members(optimiser)
        self._places = _addresses(members)
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
        small = seldom and on_host and sum(part.numel() for _, part in held) <= _SMALL
        self.every = _SELDOM if small else 1  # steps between two readings of gradients

    @property
    def optimiser(self) -> torch.optim.Optimizer | None:
        """The optimiser, as long as it exists."""
        return self._known_as()

    def fits(self, optimiser: torch.optim.Optimizer | None, step: int) -> bool:
        """Whether the parameters lie where they did."""
        if optimiser is None or optimiser is not self.optimiser or self._places != _addresses(_members(optimiser)):
            return False
        self.fits_in = step
        return True

    def read(self) -> Tensor | NDArray[Any] | None:
        """A copy of the entries, one parameter after the other."""
        if self._arrays:
            return np.concatenate(self._arrays)
        return torch.cat(self._views) if self._views else None

    def read_gradients(self, trace: Trace) -> None:
        """Norms of gradients, or of the parts of them that this process counts, and whose they are."""
        optimiser = self.optimiser
        if optimiser is None or isinstance(getattr(optimiser, "grad_scale", None), Tensor):  # it may be in them
            return
        trace.with_gradient, trace.gradients = self._gradients(_members(optimiser))

    def _gradients(self, members: list[nn.Parameter]) -> tuple[list[str], Tensor | None]:
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


_Short = tuple[int, _Entries, Any, list[Any], float | None]  # step, whose entries, these, rates and loss


def _members(optimiser: torch.optim.Optimizer) -> list[nn.Parameter]:
    groups = optimiser.param_groups
    return groups[0]["params"] if len(groups) == 1 else [p for group in groups for p in group["params"]]


def _addresses(members: list[nn.Parameter]) -> list[int]:
    return [p.data_ptr() if type(p) is nn.Parameter else own_part(p).data_ptr() for p in members]


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
        self._factor, self._count, self._due = factor, 0, _FEWEST
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
        if not math.isfinite(value):
            return self._count >= _FEWEST
        outside = value > self.limit
        self.add(value)
        if self._count >= self._due:
            self._due = self._count + _AGAIN
            self.limit = band_limit(list(self._values), self._factor)
        return outside

    def add(self, value: float) -> None:
        """Take a value that is known to lie in the band."""
        self._values.append(value)
        self._count += 1


class _Bands:
    """The band of the loss, and that of the norm of the whole gradient.  Nothing waits for the device."""

    def __init__(self) -> None:
        self.loss = _Band(1.3)
        self._bands = {"loss": self.loss, "gradient": _Band(4.0)}
        self._waiting: deque[tuple[str, int, Tensor, Any]] = deque()
        self._found: list[dict[str, Any]] = []

    def add(self, name: str, step: int, value: Loss) -> None:
        """Compare a number of this step; one on a device is sent to the host, and compared when it is there."""
        if isinstance(value, float) or value.is_cpu:
            self._compare(name, step, float(value))
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

    def __init__(self, *, optimisers: int) -> None:
        self._active = optimisers > 0
        self._seldom = optimisers == 1 and not is_initialised()  # a small model's gradients are not read in each step
        self._steps: deque[RingStep | _Short] = deque(maxlen=STEPS + 1)
        self._taken = -1  # the last step that was written
        self._traces: dict[int, Trace] = {}
        self._losses: list[Loss] = []  # of the step under way
        self._waiting: list[tuple[int | None, Loss]] = []  # those since the last optimiser's step, with the scale's
        self._logged: list[tuple[int, Loss]] = []  # step, loss
        self._entries: dict[int, _Entries] = {}
        self._small: _Entries | None = None  # of a small model's optimiser
        self._bands = _Bands()

    def add(self, step: int, optimiser: torch.optim.Optimizer) -> bool:
        """Keep a step of a small model that is not watched, and do nothing else; whether that is enough."""
        small = self._small
        if small is None or step % small.every == 0 or len(self._waiting) > 1 or hasattr(optimiser, "found_inf"):
            return False
        loss: Any = None
        if self._waiting:
            version, loss = self._waiting[0]
            if version is not None or type(loss) is not float or not loss <= self._bands.loss.limit:
                return False
            self._waiting = []
            self._bands.loss.add(loss)
        self._steps.append((step, small, small.read(), [group.get("lr") for group in optimiser.param_groups], loss))
        return True

    def add_loss(self, loss: Any) -> bool:
        """Keep a loss of a small model, if it is a number on the host; whether it is."""
        if self._small is None or type(loss) is not Tensor or not loss.is_cpu or loss.numel() != 1:
            return False
        self._waiting.append((None, loss.item()))
        return True

    def _settled(self) -> dict[int, RingStep]:
        """The steps by number, with traces of those that `add` has kept."""
        for place, kept in enumerate(self._steps):
            if not isinstance(kept, RingStep):
                step, known, entries, rates, loss = kept
                trace = Trace(known.names, _rates(0, rates), entries, known.sizes)
                self._steps[place] = RingStep(step, False, {0: trace}, [] if loss is None else [loss])
        return {kept.step: kept for kept in self._steps if isinstance(kept, RingStep)}

    def record(
        self,
        step: int,
        index: int,
        optimiser: torch.optim.Optimizer,
        names: Mapping[int, str],
        scale: int | None = None,
    ) -> None:
        """An optimiser has stepped: keep a few entries of its parameters and the norms of its gradients.

        A loss with an older version of the scale belongs to a step that a GradScaler has skipped.
        """
        self._losses += [loss for version, loss in self._waiting if version in (None, scale)]
        self._waiting = []
        if not self._active or (torch.cuda._initialized and torch.cuda.is_current_stream_capturing()):
            return
        known = self._entries.get(index)
        looks = known is None or step % known.every == 0
        if known is None or (looks and not known.fits(optimiser, step)):
            self._forget(index)
            known = self._entries[index] = _Entries(optimiser, names, step, seldom=self._seldom)
        rates = [group.get("lr") for group in optimiser.param_groups]
        trace = Trace(known.names, _rates(index, rates), known.read(), known.sizes)
        if looks:
            known.read_gradients(trace)
            plain = scale is None and not any(isinstance(rate, Tensor) for rate in rates)
            self._small = known if plain and known.every > 1 else None
        self._traces[index] = trace

    def _forget(self, index: int) -> None:
        """The parameters of an optimiser lie elsewhere: since they were looked at, entries may be those of others."""
        known = self._entries.pop(index, None)
        for step, kept in {} if known is None else self._settled().items():
            if known and step > known.fits_in and index in kept.traces:
                kept.traces[index].entries = None

    def record_loss(self, loss: Tensor, scale: int | None = None) -> None:
        """The loss module was called, at this version of the scale of a GradScaler."""
        if self._active:
            self._waiting[:-STEPS] = []  # of steps that a loop skips
            self._waiting.append((scale, _on_host_or_detached(loss)))

    def skip(self) -> None:
        """A GradScaler has skipped the step of an optimiser."""
        self._waiting = []

    def log(self, step: int, loss: Any) -> None:
        """A loss was logged; its row is written anyway."""
        if self._active:
            self._logged.append((step, _on_host_or_detached(loss) if isinstance(loss, Tensor) else float(loss)))
            last = self._logged[-1][1]
            if isinstance(last, Tensor) or not last <= self._bands.loss.limit:
                self._small = None  # until it is looked at again

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
            self._bands.add("loss", step, losses[0] if len(losses) == 1 else _mean(losses))
        norms = [trace.gradients for trace in traces.values() if trace.gradients is not None]
        if norms and all(one.is_cpu for one in norms):
            self._bands.add("gradient", step, math.hypot(*(value for one in norms for value in one.tolist())))
        elif norms:
            known = norms[0] if len(norms) == 1 else torch.cat([one.to(norms[0].device) for one in norms])
            self._bands.add("gradient", step, torch.linalg.vector_norm(known))
        found = self._bands.spikes()
        for index, trace in traces.items() if found else ():
            known = self._entries[index]
            if trace.gradients is None and known.every > 1 and known.fits(known.optimiser, step):
                known.read_gradients(trace)
        return found

    def take(self, step: int) -> list[RingStep]:
        """The last steps up to this one that were not taken before, each compared with the step before it.

        They are the same steps in every process; one that the ring does not have is empty.
        """
        for index, known in list(self._entries.items()):
            if known.every > 1 and not known.fits(known.optimiser, step):
                self._forget(index)
        kept = self._settled()
        for number, here in kept.items():
            last = kept.get(number - 1)
            before = {} if last is None else last.traces
            for index, trace in here.traces.items():
                if trace.moved is None and index in before:
                    trace.compare(before[index])
        due = range(max(self._taken + 1, step - STEPS + 1), step + 1)
        self._taken = max(self._taken, step)
        return [kept.get(number) or RingStep(number, watched=True) for number in due]


def _on_host_or_detached(loss: Tensor) -> Loss:
    loss = loss.detach()
    mean = loss if loss.dim() == 0 else loss.float().mean() if not loss.is_floating_point() else loss.mean()
    return float(mean) if mean.is_cpu else mean


def _mean(losses: Sequence[Loss]) -> Loss:
    numbers = [loss for loss in losses if isinstance(loss, float)]
    if len(numbers) == len(losses):
        return math.fsum(numbers) / len(numbers)
    return torch.stack([torch.as_tensor(loss) for loss in losses if isinstance(loss, Tensor)]).mean()


def _rates(index: int, rates: Sequence[Any]) -> dict[str, float | Tensor]:
    """The rate of each group; a rate that is a tensor is copied, as schedules change it in place."""
    return {
        f"group {index}.{number}": rate.detach().clone().reshape(1) if isinstance(rate, Tensor) else float(rate)
        for number, rate in enumerate(rates)
        if isinstance(rate, Tensor | int | float)
    }
