"""Everything one watched step left behind, still on the device."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from sonde.watching.calls import Call
from sonde.watching.parameters import Parameters


@dataclass(slots=True)
class Sheet:
    """A step's calls, parameters and losses."""

    step: int
    calls: list[Call] = field(default_factory=list)
    parameters: list[Parameters] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    scale: Tensor | None = None  # of the loss, by a GradScaler
    unscaled_reason: str | None = None  # why gradients cannot be believed
    unseen: dict[str, str] = field(default_factory=dict)  # modules that were not called → why

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
        yield from self.losses
        if self.scale is not None:
            yield self.scale
