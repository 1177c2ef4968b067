"""The calls of one module in the passes of a step, as one.

Up to 64 are kept side by side; more are folded: sums of squares, sums, maxima and counts into one number each, so that
memory does not grow with their number.  Medians need every sample, and are undefined beyond 65,536 of them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sonde.observe.reductions import exact
from sonde.observe.step_record import Call, Gradient, Output, Stream

SIDE_BY_SIDE = 64
SAMPLES = 1 << 16  # whose ratios are kept for a median

MANY_SAMPLES = f"the median of more than {SAMPLES:,} samples is not kept"


def pool(call: Call, later: Call) -> None:
    """Add what a later pass of the same step saw."""
    for name in ("outputs", "gradients", "inputs", "streams", "unit_bounds", "at_bounds"):
        setattr(call, name, (*getattr(call, name), *getattr(later, name)))
    call.reason = call.reason or later.reason
    call.stream_reason = call.stream_reason or later.stream_reason
    if max(len(call.outputs), len(call.gradients)) > SIDE_BY_SIDE:
        _fold(call)


def _fold(call: Call) -> None:
    call.outputs, call.inputs = _outputs(call.outputs), _outputs(call.inputs)
    call.gradients = _gradients(call.gradients)
    call.at_bounds = (_total(call.at_bounds),) if call.at_bounds else ()
    call.unit_bounds = _bounds(call.unit_bounds)
    if call.streams:
        call.streams = (_joined(call.streams),)
        if call.streams[0].steps.numel() > SAMPLES:
            call.streams, call.stream_reason = (), call.stream_reason or MANY_SAMPLES


def _outputs(parts: Sequence[Output]) -> Sequence[Output]:
    if not parts:
        return ()
    sums = [part.sums for part in parts if part.sums is not None]
    tops = [part.tops for part in parts if part.tops is not None]
    folded = Output(
        _length([part.norms for part in parts]),
        sum(part.entries for part in parts),
        _total(sums) if sums else None,
        torch.cat([top.reshape(-1) for top in tops]).amax().reshape(1) if tops else None,
    )
    folded.samples = sum(part.samples for part in parts)
    return (folded,)


def _gradients(parts: Sequence[Gradient]) -> Sequence[Gradient]:
    folded = Gradient(next((part.reason for part in parts if part.reason), None))
    folded.fired = max((part.fired for part in parts), default=0)
    came = [(part, part.norms) for part in parts if part.norms is not None]
    if came:
        folded.norms = _length([norms for _, norms in came])
        folded.entries = sum(part.entries for part, _ in came)
        folded.samples = sum(part.samples for part, _ in came)
        folded.halves = next((part.halves for part, _ in came if part.halves is not None), None)
    return (folded,)


def _length(norms: Sequence[Tensor]) -> Tensor:
    """√(Σ‖·‖²), a vector of one."""
    joined = torch.cat(list(norms))
    return joined.to(exact(joined)).square().sum().sqrt().reshape(1)


def _total(parts: Sequence[Tensor]) -> Tensor:
    joined = torch.cat(list(parts))
    return joined.to(exact(joined)).sum().reshape(1)


def _bounds(parts: Sequence[tuple[Tensor, Tensor]]) -> Sequence[tuple[Tensor, Tensor]]:
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


def _joined(streams: Sequence[Stream]) -> Stream:
    return Stream(
        *(torch.cat([getattr(stream, part) for stream in streams]) for part in ("steps", "dots", "inputs", "outputs"))
    )
