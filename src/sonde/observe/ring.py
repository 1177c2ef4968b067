"""The last 64 steps of every parameter, kept on the device, and the bands that tell when they are written.

Most steps are not watched.  Of each of them the ring keeps what is cheap at the optimiser's step: the norm of every
gradient, 64 entries of every parameter, the rates and the loss.  When the loss or the norm of the whole gradient leaves
its band, the recorder writes the ring as rows and watches the next 16 steps.  Where several processes train together
it does not watch them, because all processes have to watch the same steps.  There is no ring without an optimiser, of
steps with a closure, or of a sharded model.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sonde.core.seed_statistics import band_limit
from sonde.metrics.reductions import tensor_norms

STEPS = 64  # that the ring holds
DENSE = 16  # steps that are watched after a spike

_ENTRIES = 64  # of a parameter
_FEWEST, _RECENT = 16, 32  # values that make a band: at least, and the last ones
_RARE = 8  # spikes after which the time between two is not doubled any more
_AGAIN = 4  # values after which a limit is computed anew
_WAITING = 16  # values of a device whose copies cannot be asked whether they are done, read at once


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
    traces: dict[int, Trace]  # by the number of the optimiser
    losses: list[Tensor]


class _Entries:
    """Views of a few entries of every parameter of an optimiser, for as long as its parameters stay in memory."""

    def __init__(self, members: list[nn.Parameter], places: list[int], names: Mapping[int, str]) -> None:
        self.places = places
        self.named = [(place, names[id(p)]) for place, p in enumerate(members) if id(p) in names]
        held = [(name, members[place]) for place, name in self.named if _is_plain(members[place])]
        device = held[0][1].device if held else None
        views = [(name, _spread(p.detach())) for name, p in held if p.device == device]
        self.names = [name for name, _ in views]
        self.views = [view for _, view in views]
        self.sizes = [view.numel() for view in self.views]

    def read(self) -> Tensor | None:
        """A copy of the entries, one parameter after the other."""
        return torch.cat(self.views) if self.views else None


def _is_plain(parameter: nn.Parameter) -> bool:
    return type(parameter) is nn.Parameter and parameter.is_floating_point() and parameter.is_contiguous()


def _spread(parameter: Tensor) -> Tensor:
    flat = parameter.view(-1)
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


class _Arriving:
    """Numbers on their way from the device, in their order; nothing waits for them."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Tensor, Any]] = deque()

    def add(self, step: int, value: Tensor) -> None:
        """Send a number to the host."""
        done = None
        if value.device.type == "cuda":
            value = value.to("cpu", non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        self._waiting.append((step, value, done))

    def arrived(self) -> Iterator[tuple[int, float]]:
        """Step and value of the numbers that are here."""
        while self._waiting:
            _, value, done = self._waiting[0]
            ready = done.query() if done is not None else value.device.type == "cpu" or len(self._waiting) > _WAITING
            if not ready:
                return
            step, value, _ = self._waiting.popleft()
            yield step, value.item()


class Ring:
    """The last steps, and what is known of their usual losses and gradients."""

    def __init__(self, *, active: bool) -> None:
        self.active = active
        self._steps: deque[RingStep] = deque(maxlen=STEPS + 1)
        self._taken = -1  # the last step that was written
        self._traces: dict[int, Trace] = {}
        self._losses: list[Tensor] = []
        self._entries: dict[int, _Entries] = {}
        self._bands = {"loss": _Band(1.3), "gradient": _Band(4.0)}
        self._arriving = {name: _Arriving() for name in self._bands}
        self.spikes: list[dict[str, Any]] = []  # facts: which number left its band, and when

    def record(self, index: int, optimiser: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        """An optimiser has stepped: keep the norms of its gradients and a few entries of its parameters."""
        if not self.active or (torch.cuda._initialized and torch.cuda.is_current_stream_capturing()):
            return
        groups = optimiser.param_groups
        members = groups[0]["params"] if len(groups) == 1 else [p for group in groups for p in group["params"]]
        places = [p.data_ptr() for p in members]
        known = self._entries.get(index)
        if known is None or known.places != places:
            known = self._entries[index] = _Entries(members, places, names)
        trace = Trace(known.names, _rates(index, groups), known.read(), known.sizes)
        if not isinstance(getattr(optimiser, "grad_scale", None), Tensor):  # else it may still be in the gradients
            grads = [(name, grad) for place, name in known.named if _readable(grad := members[place].grad)]
            if grads:
                trace.with_gradient = [name for name, _ in grads]
                trace.gradients = tensor_norms([grad for _, grad in grads])
        self._traces[index] = trace

    def record_loss(self, loss: Tensor) -> None:
        """The loss module was called in this step."""
        if self.active:
            self._losses[:-STEPS] = []  # of steps that a loop skips
            self._losses.append(loss.detach() if loss.dim() == 0 else loss.detach().mean())

    def log(self, step: int, loss: Any) -> None:
        """A loss was logged; its row is written anyway."""
        if self.active:
            known = loss.detach().float().mean() if isinstance(loss, Tensor) else torch.tensor(float(loss))
            self._arriving["loss"].add(step, known)

    def end_step(self, step: int, *, watched: bool) -> bool:
        """Keep the step, and ask whether a number has left its band."""
        if not self.active:
            return False
        losses, traces = self._losses, self._traces
        self._steps.append(RingStep(step, watched, traces, losses))
        self._losses, self._traces = [], {}
        if losses:
            self._arriving["loss"].add(step, losses[0] if len(losses) == 1 else torch.stack(losses).mean())
        norms = [trace.gradients for trace in traces.values() if trace.gradients is not None]
        if norms:
            known = norms[0] if len(norms) == 1 else torch.cat([one.to(norms[0].device) for one in norms])
            self._arriving["gradient"].add(step, torch.linalg.vector_norm(known))
        return self._has_spike()

    def _has_spike(self) -> bool:
        found = False
        for name, band in self._bands.items():
            for step, value in self._arriving[name].arrived():
                limit = band.limit
                if band.is_spike(step, value):
                    found = True
                    known = value if math.isfinite(value) else None
                    self.spikes.append({"step": step, "of": name, "value": known, "limit": limit, "world": _world()})
        return found

    def take(self) -> list[RingStep]:
        """The steps that were not taken before, oldest first, each compared with the step before it."""
        for last, here in zip(self._steps, list(self._steps)[1:], strict=False):
            for index, trace in here.traces.items():
                if trace.moved is None and index in last.traces:
                    trace.compare(last.traces[index])
        taken = [one for one in list(self._steps)[-STEPS:] if one.step > self._taken]
        self._taken = taken[-1].step if taken else self._taken
        return taken


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


def _readable(grad: Tensor | None) -> bool:
    return grad is not None and type(grad) is Tensor and grad.layout == torch.strided and not grad.is_meta


def _world() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
