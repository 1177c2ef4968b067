"""What a watched step records: calls of modules, the gradients that come back, parameters and losses.

Passes of one step are pooled.  Up to 64 calls of a module are kept side by side; more are folded into one: sums of
squares, sums, maxima and counts, so that memory does not grow with their number.  Medians need every sample, and are
undefined beyond 65,536 of them.
"""

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sonde.metrics.reductions import exact_dtype
from sonde.metrics.rows import Reading
from sonde.observe.ring import Trace
from sonde.observe.watched_modules import WatchedModule

if TYPE_CHECKING:
    from sonde.observe.updates import ParameterNorms

CallKey = tuple[str, int]  # module, number of its call in the pass

backward_pass = torch._C._current_graph_task_id  # the number of the backward pass under way; -1 outside

NO_GRADIENT = "no gradient came back to this output"
NEEDS_NONE = "nothing that leads to this output asks for a gradient"
VIEW = "no gradient was seen: the output is a view, and may have been changed in place"
TWICE = "a second backward pass went through this output in one step"
IN_PLACE = "the module changes its input in place"
BY_KEYWORD = "its input came by keyword, where a change in place would not be noticed"

FIRST_STEPS = 10  # steps that are all watched: most failures show there
_RARELY = 1024  # watched steps between two costly ones, at most

_SIDE_BY_SIDE = 64
_SAMPLES = 1 << 16  # whose ratios are kept for a median

_MANY_SAMPLES = f"the median of more than {_SAMPLES:,} samples is not kept"
_CLOSE = 1e-3  # two weights are equal

_AMBIGUOUS_WEIGHTS = (
    "several losses in each of several backward passes, weighted in a way that does not tell the loss of the step: "
    "give a function as loss=, and watch.log(loss)"
)


# Which steps are watched


def is_watched(step: int, every: int) -> bool:
    """Steps 0–9, and the multiples of `every`."""
    return step < FIRST_STEPS or step % every == 0


def next_watched(step: int, every: int) -> int:
    """The first watched step after this one."""
    return step + 1 if step + 1 < FIRST_STEPS else step // every * every + every


def is_costly(step: int, every: int) -> bool:
    """Step 0, the watched steps number 1, 4, 16, 64, … after it (25, 100, 400, 1600, …), and every 1024th."""
    number, rest = divmod(step, every)
    if rest:
        return False
    power_of_four = number > 0 and number & (number - 1) == 0 and number.bit_length() % 2 == 1
    return number % _RARELY == 0 or power_of_four


# Losses


@dataclass(slots=True, eq=False)
class RecordedLoss:
    """One call of a loss, or a loss that the user logged.

    A backward pass through a loss shows the weight w with which it was differentiated.  Losses of one backward pass are
    parts of one sum, Σ w·loss; those of several backward passes are micro-batches, and are averaged.
    """

    value: Tensor  # its mean, a vector of one
    is_share: bool = False  # it was divided by the samples of all micro-batches, not by its own
    backward: int | None = None  # autograd's number of the backward pass that went through it
    weight: Tensor | None = None  # Σ ∂(what is differentiated)/∂(entries of the loss)
    part: Tensor | None = None  # Σ (the same)·(entries of the loss), where they are several

    def record_weight(self, entries: Tensor | None, grad: Tensor) -> None:
        """A gradient comes back to the loss; `entries` are its values where they are several."""
        if self.backward is not None:
            return
        self.backward = backward_pass()
        self.weight = grad.detach().sum().reshape(1)
        self.part = None if entries is None else (grad.detach() * entries).sum().reshape(1)

    def tensors(self) -> list[Tensor]:
        """The tensors it holds."""
        return [tensor for tensor in (self.value, self.weight, self.part) if tensor is not None]


def differentiated(losses: Sequence[RecordedLoss]) -> list[RecordedLoss]:
    """The losses that a backward pass went through; all of them if it went through none."""
    return [loss for loss in losses if loss.backward is not None] or list(losses)


def loss_of_step(
    losses: Sequence[RecordedLoss], read: Callable[[Tensor], float], scale: float, unscaled: str | None
) -> tuple[float, str | None]:
    """The loss, or NaN and the reason; `scale` is the factor that a GradScaler put into the weights."""
    if all(loss.backward is None for loss in losses):
        return _mean([read(loss.value) for loss in losses]), None
    by_pass: dict[int | None, list[RecordedLoss]] = {}
    for loss in losses:
        by_pass.setdefault(loss.backward, []).append(loss)
    shares = any(loss.is_share for loss in losses)
    alone = not shares and all(len(group) == 1 for group in by_pass.values())
    if alone and (len(losses) == 1 or unscaled is not None):
        return _mean([read(loss.value) for loss in losses]), None
    if unscaled is not None:
        return math.nan, unscaled
    sums = [sum(_weighted(loss, read) for loss in group) / scale for group in by_pass.values()]
    if len(by_pass) == 1 or shares:
        return sum(sums), None
    tops = [
        max(abs(read(loss.weight)) for loss in group if loss.weight is not None) / scale for group in by_pass.values()
    ]
    if abs(sum(tops) - 1) < _CLOSE:  # the weights share one loss out to the micro-batches
        return sum(sums), None
    if alone:
        return _mean([read(loss.value) for loss in losses]), None
    if all(abs(top - 1) < _CLOSE for top in tops):
        return _mean(sums), None
    return math.nan, _AMBIGUOUS_WEIGHTS


def _weighted(loss: RecordedLoss, read: Callable[[Tensor], float]) -> float:
    """The term of the loss in the sum that is differentiated."""
    if loss.part is not None:
        return read(loss.part)
    return 0.0 if loss.weight is None else read(loss.weight) * read(loss.value)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# One step


class Output:
    """A tensor that a module returned or took: vectors over its samples."""

    __slots__ = ("entries", "maxima", "norms", "samples", "sums")

    def __init__(self, norms: Tensor, entries: int, sums: Tensor | None = None, maxima: Tensor | None = None) -> None:
        self.norms, self.entries, self.samples = norms, entries, norms.shape[0]
        self.sums, self.maxima = sums, maxima


class Gradient:
    """The gradient of one tensor."""

    __slots__ = ("entries", "fired", "halves", "halves_samples", "keeps_tokens", "norms", "reason", "samples", "tokens")

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason  # why there is none
        self.fired = 0
        self.norms: Tensor | None = None
        self.entries = self.samples = 0
        self.halves: Tensor | None = None
        self.halves_samples: int | None = None  # of the halves, where they are not those of the norms
        self.keeps_tokens = False
        self.tokens: Tensor | None = None  # which of them a gradient came back to, if that is asked for


@dataclass(slots=True)
class StreamNorms:
    """‖out − in‖, ⟨in, out⟩, ‖in‖ and ‖out‖ of each sample."""

    steps: Tensor
    dots: Tensor
    inputs: Tensor  # norms
    outputs: Tensor


@dataclass(slots=True)
class RouterChoices:
    """What the router of a mixture of experts chose."""

    load: Tensor  # of each expert ÷ its fair share
    entropy: Tensor
    mixture: Gradient | None  # of the output of the mixture
    dropped: Tensor | None = None  # choices that were dropped, and all

    def record_gates(self, grads: Sequence[Tensor | None]) -> None:
        """Gradients come back to the gates: that of a choice beyond the capacity of an expert is exactly 0.

        A token whose output gets no gradient, such as padding, does not count.
        """
        tokens = None if self.mixture is None else self.mixture.tokens
        if tokens is not None and grads[0] is not None and grads[0].numel() % tokens.numel() == 0:
            unused = grads[0].detach().reshape(tokens.numel(), -1) == 0
            counts = (unused & tokens[:, None]).sum(), tokens.sum() * unused.shape[1]
            self.dropped = torch.stack(counts).to(exact_dtype(self.load))

    def tensors(self) -> list[Tensor]:
        """The tensors it holds."""
        return [tensor for tensor in (self.load, self.entropy, self.dropped) if tensor is not None]


@dataclass(slots=True)
class ModuleCall:
    """One call of one module; the calls of a step's passes are pooled in the lists."""

    watched: WatchedModule
    number: int
    reason: str | None = None  # why its output cannot be read
    shape: tuple[int, ...] = ()
    input_shape: tuple[int, ...] = ()
    outputs: Sequence[Output] = ()
    gradients: Sequence[Gradient] = ()
    inputs: Sequence[Output] = ()  # of a normalisation layer
    streams: Sequence[StreamNorms] = ()
    stream_reason: str | None = None  # why input and output are not compared, where their shapes agree
    unit_bounds: Sequence[tuple[Tensor, Tensor]] = ()
    at_bounds: Sequence[Tensor] = ()
    gram: Tensor | None = None
    tails: Tensor | None = None  # massive_share and out_kurtosis
    attention: Sequence[tuple[Tensor, ...]] = ()  # of each sample; in costly steps, of each sample and head too
    router: RouterChoices | None = None

    @property
    def key(self) -> CallKey:
        """Name of the module and number of the call."""
        return self.watched.name, self.number


class Pass:
    """One forward pass of the model, or calls of its parts up to the next backward pass."""

    def __init__(self, step: int, number: int, *, costly: bool) -> None:
        self.step, self.number = step, number
        self.costly = costly  # whether what takes longer is read as well
        self.calls: dict[CallKey, ModuleCall] = {}  # in the order in which they returned
        self.counts: dict[str, int] = {}
        self.backward: int | None = None  # the autograd engine's number of the backward pass that came through it
        self.handles: list[Any] = []  # of the hooks on its outputs
        self.half = False  # whether anything was computed in float16
        self.attention: dict[CallKey, list[tuple[Tensor, ...]]] = {}  # of calls that have not returned
        self.units: int | None = None  # where the units of the last layer are
        self.sequence: tuple[int, ...] | None = None  # times and samples of a module with batch_first=False
        self._seen: dict[int, tuple[weakref.ref[Tensor], int, Output, Gradient | None]] = {}

    def remember(self, x: Tensor, output: Output, gradient: Gradient | None) -> None:
        """Remember what was computed from a tensor, for as long as the tensor lives unchanged."""
        self._seen[id(x)] = weakref.ref(x), x._version, output, gradient

    def known(self, x: Tensor) -> tuple[Output, Gradient | None] | None:
        """What was read of this tensor, if it has not changed since; no gradient if it was an input only."""
        found = self._seen.get(id(x))
        if found is None or found[0]() is not x or found[1] != x._version:
            return None
        return found[2], found[3]


@dataclass(slots=True)
class StepRecord:
    """Everything that one watched step recorded, still on the device."""

    step: int
    calls: list[ModuleCall] = field(default_factory=list)
    parameters: list["ParameterNorms"] = field(default_factory=list)
    losses: list[RecordedLoss] = field(default_factory=list)
    of_samples: bool = False  # whether gradients were cleared between them: the loss of the step may be logged
    scale: Tensor | None = None  # of the loss, by a GradScaler
    unscaled_reason: str | None = None  # why gradients cannot be believed
    unseen: dict[str, str] = field(default_factory=dict)  # modules that were not called → why
    stale: dict[str, list[Tensor]] = field(default_factory=dict)  # norms of old and new gradient of a few parameters
    in_eval: tuple[float, int] | None = None  # share in eval mode of the modules that act differently in it
    targets: list[Tensor] = field(default_factory=list)  # mean and spread of what a loss module was given
    success: dict[str, Tensor] = field(default_factory=dict)  # by the names under which the loop logs them
    measured: list[Reading] = field(default_factory=list)  # what was asked for, of the whole network
    traces: list[Trace] = field(default_factory=list)  # of a step that the ring kept

    @property
    def expected_rows(self) -> int:
        """About how many rows it makes."""
        return 6 * len(self.calls) + 3 * sum(len(p.names) for p in self.parameters) + len(self.losses)

    def tensors(self) -> Iterable[Tensor]:
        """All tensors it holds, which are read from the device together."""
        for call in self.calls:
            for seen in (*call.outputs, *call.inputs):
                yield from (t for t in (seen.norms, seen.sums, seen.maxima) if t is not None)
            for gradient in call.gradients:
                yield from (t for t in (gradient.norms, gradient.halves) if t is not None)
            for stream in call.streams:
                yield from (stream.steps, stream.dots, stream.inputs, stream.outputs)
            for pair in (*call.unit_bounds, *call.attention):
                yield from pair
            yield from () if call.router is None else call.router.tensors()
            yield from call.at_bounds
            yield from (t for t in (call.gram, call.tails) if t is not None)
        for known in self.parameters:
            yield from (t for t in (known.weights, known.gradients, known.updates, known.ratios) if t is not None)
        for loss in self.losses:
            yield from loss.tensors()
        for arrivals in self.stale.values():
            yield from arrivals
        yield from self.targets
        yield from self.success.values()
        for trace in self.traces:
            yield from trace.tensors()
        if self.scale is not None:
            yield self.scale


# Pooling


def pool(call: ModuleCall, later: ModuleCall) -> None:
    """Add what a later pass of the same step recorded."""
    for name in ("outputs", "gradients", "inputs", "streams", "unit_bounds", "at_bounds"):
        setattr(call, name, (*getattr(call, name), *getattr(later, name)))
    call.reason = call.reason or later.reason
    call.stream_reason = call.stream_reason or later.stream_reason
    if max(len(call.outputs), len(call.gradients)) > _SIDE_BY_SIDE:
        _fold(call)


def _fold(call: ModuleCall) -> None:
    call.outputs, call.inputs = folded_outputs(call.outputs), folded_outputs(call.inputs)
    call.gradients = folded_gradients(call.gradients)
    call.at_bounds = (_joint_sum(call.at_bounds),) if call.at_bounds else ()
    call.unit_bounds = folded_bounds(call.unit_bounds)
    if call.streams:
        call.streams = (_joined_streams(call.streams),)
        if call.streams[0].steps.numel() > _SAMPLES:
            call.streams, call.stream_reason = (), call.stream_reason or _MANY_SAMPLES


def folded_outputs(parts: Sequence[Output]) -> Sequence[Output]:
    """One output in place of several: norm, sum and largest entry of all, and how many entries and samples."""
    if not parts:
        return ()
    sums = [part.sums for part in parts if part.sums is not None]
    maxima = [part.maxima for part in parts if part.maxima is not None]
    folded = Output(
        _joint_norm([part.norms for part in parts]),
        sum(part.entries for part in parts),
        _joint_sum(sums) if sums else None,
        torch.cat([part.reshape(-1) for part in maxima]).amax().reshape(1) if maxima else None,
    )
    folded.samples = sum(part.samples for part in parts)
    return (folded,)


def folded_gradients(parts: Sequence[Gradient]) -> Sequence[Gradient]:
    """One gradient in place of several."""
    folded = Gradient(next((part.reason for part in parts if part.reason), None))
    folded.fired = max((part.fired for part in parts), default=0)
    came = [(part, part.norms) for part in parts if part.norms is not None]
    if came:
        folded.norms = _joint_norm([norms for _, norms in came])
        folded.entries = sum(part.entries for part, _ in came)
        folded.samples = sum(part.samples for part, _ in came)
        halved = next((part for part, _ in came if part.halves is not None), folded)
        folded.halves, folded.halves_samples = halved.halves, halved.halves_samples
    return (folded,)


def _joint_norm(norms: Sequence[Tensor]) -> Tensor:
    """√(Σ‖·‖²), a vector of one."""
    joined = torch.cat(list(norms))
    return joined.to(exact_dtype(joined)).square().sum().sqrt().reshape(1)


def _joint_sum(parts: Sequence[Tensor]) -> Tensor:
    joined = torch.cat(list(parts))
    return joined.to(exact_dtype(joined)).sum().reshape(1)


def folded_bounds(parts: Sequence[tuple[Tensor, Tensor]]) -> Sequence[tuple[Tensor, Tensor]]:
    """Smallest and largest value of each unit; one pair for each number of units that occurs."""
    by_size: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for pair in parts:
        by_size.setdefault(pair[1].numel(), []).append(pair)
    found = []
    for pairs in by_size.values():
        high = torch.stack([pair[1] for pair in pairs]).amax(0)
        never_negative = all(low is top for low, top in pairs)
        found.append((high if never_negative else torch.stack([pair[0] for pair in pairs]).amin(0), high))
    return found


def _joined_streams(streams: Sequence[StreamNorms]) -> StreamNorms:
    return StreamNorms(
        *(torch.cat([getattr(stream, part) for stream in streams]) for part in ("steps", "dots", "inputs", "outputs"))
    )
