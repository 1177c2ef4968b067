"""What was seen in a step: the calls of modules in a forward pass, the gradients that came back, weights and losses."""

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sonde.observe.heard_losses import HeardLoss
from sonde.observe.updates import Parameters
from sonde.observe.watched_modules import Spot

Key = tuple[str, int]  # module, number of its call in the pass

NO_GRADIENT = "no gradient came back to this output"
NEEDS_NONE = "nothing that leads to this output asks for a gradient"
VIEW = "no gradient was seen: the output is a view, and may have been changed in place"
TWICE = "a second backward pass went through this output in one step"
IN_PLACE = "the module changes its input in place"
BY_KEYWORD = "its input came by keyword, where a change in place would not be noticed"


class Output:
    """One tensor that a module returned or took: vectors over its samples."""

    __slots__ = ("entries", "norms", "samples", "sums", "tops")

    def __init__(self, norms: Tensor, entries: int, sums: Tensor | None = None, tops: Tensor | None = None) -> None:
        self.norms, self.entries, self.samples = norms, entries, norms.shape[0]
        self.sums, self.tops = sums, tops


class Gradient:
    """What came back to one tensor."""

    __slots__ = ("entries", "fired", "halves", "norms", "reason", "samples")

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason  # why there is none
        self.fired = 0
        self.norms: Tensor | None = None
        self.entries = self.samples = 0
        self.halves: Tensor | None = None


@dataclass(slots=True)
class Stream:
    """Output against input, sample by sample."""

    steps: Tensor
    dots: Tensor
    inputs: Tensor  # norms
    outputs: Tensor


@dataclass(slots=True)
class Call:
    """One call of one module; the calls of a step's passes are pooled in the lists."""

    spot: Spot
    number: int
    reason: str | None = None  # why its output cannot be read
    shape: tuple[int, ...] = ()
    input_shape: tuple[int, ...] = ()
    outputs: Sequence[Output] = ()
    gradients: Sequence[Gradient] = ()
    inputs: Sequence[Output] = ()  # of a normalisation layer
    streams: Sequence[Stream] = ()
    stream_reason: str | None = None  # why input and output are not compared, where their shapes agree
    unit_bounds: Sequence[tuple[Tensor, Tensor]] = ()
    at_bounds: Sequence[Tensor] = ()
    gram: Tensor | None = None
    attention: Sequence[tuple[Tensor, Tensor]] = ()

    @property
    def key(self) -> Key:
        return self.spot.name, self.number


class Pass:
    """One forward pass of the model, or calls of its parts up to the next backward pass."""

    def __init__(self, step: int, number: int, *, costly: bool) -> None:
        self.step, self.number = step, number
        self.costly = costly  # whether what takes longer is read as well
        self.calls: dict[Key, Call] = {}  # in the order in which they returned
        self.counts: dict[str, int] = {}
        self.backward: int | None = None  # the autograd engine's number of the backward pass that came through it
        self.handles: list[Any] = []  # of the hooks on its outputs
        self.half = False  # whether anything was computed in float16
        self.attention: dict[Key, list[tuple[Tensor, Tensor]]] = {}  # of calls that have not returned
        self.units: int | None = None  # where the units of the last layer are
        self._seen: dict[int, tuple[weakref.ref[Tensor], int, Output, Gradient | None]] = {}

    def remember(self, x: Tensor, output: Output, gradient: Gradient | None) -> None:
        self._seen[id(x)] = weakref.ref(x), x._version, output, gradient

    def known(self, x: Tensor) -> tuple[Output, Gradient | None] | None:
        """What was read off this very tensor, if it is still what it was; no gradient where it was only an input."""
        found = self._seen.get(id(x))
        if found is None or found[0]() is not x or found[1] != x._version:
            return None
        return found[2], found[3]


@dataclass(slots=True)
class Sheet:
    """Everything one watched step left behind, still on the device."""

    step: int
    calls: list[Call] = field(default_factory=list)
    parameters: list[Parameters] = field(default_factory=list)
    losses: list[HeardLoss] = field(default_factory=list)
    scale: Tensor | None = None  # of the loss, by a GradScaler
    unscaled_reason: str | None = None  # why gradients cannot be believed
    unseen: dict[str, str] = field(default_factory=dict)  # modules that were not called → why
    left: dict[str, list[Tensor]] = field(default_factory=dict)  # norms of old and new gradient of a few parameters
    in_eval: tuple[float, int] | None = None  # share in eval mode of the modules that act differently in it

    @property
    def expected(self) -> int:
        """About how many rows it makes."""
        return 6 * len(self.calls) + 3 * sum(len(p.names) for p in self.parameters) + len(self.losses)

    def tensors(self) -> Iterable[Tensor]:
        for call in self.calls:
            for seen in (*call.outputs, *call.inputs):
                yield from (t for t in (seen.norms, seen.sums, seen.tops) if t is not None)
            for gradient in call.gradients:
                yield from (t for t in (gradient.norms, gradient.halves) if t is not None)
            for stream in call.streams:
                yield from (stream.steps, stream.dots, stream.inputs, stream.outputs)
            for pair in (*call.unit_bounds, *call.attention):
                yield from pair
            yield from call.at_bounds
            if call.gram is not None:
                yield call.gram
        for known in self.parameters:
            yield from (t for t in (known.weights, known.gradients, known.updates) if t is not None)
        for loss in self.losses:
            yield from loss.tensors()
        for arrivals in self.left.values():
            yield from arrivals
        if self.scale is not None:
            yield self.scale
