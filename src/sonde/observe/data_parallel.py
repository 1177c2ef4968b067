"""Outputs, gradients and losses of processes that train on parts of one batch (DDP, FSDP2), as sums over all of them.

Each process lays the sums of its own calls out in one vector, which the collective of `sonde.observe.shards` adds up.
The order of calls is that of the first step; what a process does not have in a step stays zero.  Root mean squares,
means, largest entries, shares of dead and saturated units, and losses are then those of the whole batch.  Medians,
attention and what the costly steps add are those of rank 0, with the number of its samples.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sonde.observe.step_record import (
    Gradient,
    ModuleCall,
    Output,
    RecordedLoss,
    folded_bounds,
    folded_gradients,
    folded_outputs,
)

Place = tuple[str, int, int]  # module, number of its call, units of an activation (0: none)


def data_ranks(model: nn.Module) -> list[int]:
    """The ranks that train this model on parts of one batch, as DDP and FSDP2 tell; none for one process."""
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            return _several(dist.get_process_group_ranks(module.process_group))
        state: Any = getattr(module, "_get_fsdp_state", lambda: None)()
        group = getattr(state, "_fsdp_param_group", None)
        if group is not None:
            return _several(group.mesh_info.mesh.mesh.flatten().tolist())
    return []


def _several(ranks: Sequence[int]) -> list[int]:
    return sorted(ranks) if len(ranks) > 1 else []


class CallSums:
    """Where the sums of each call are in the vector."""

    def __init__(self, places: Sequence[Place], losses: int, ranks: Sequence[int]) -> None:
        self._places = {(module, number): units for module, number, units in places}
        self._losses, self._ranks = losses, list(ranks)
        self.size = losses + sum(_SCALARS + len(ranks) + units for units in self._places.values())

    @staticmethod
    def layout(calls: Sequence[ModuleCall], losses: Sequence[RecordedLoss]) -> tuple[list[Place], int]:
        """What this process has seen in the first step."""
        return [(*call.key, _units(call)) for call in calls if call.outputs], len(losses)

    @staticmethod
    def shared(layouts: Sequence[tuple[Sequence[Sequence[Any]], int]]) -> tuple[list[Place], int]:
        """What all processes have seen, in the order of the first."""
        common = set.intersection(*({tuple(place) for place in places} for places, _ in layouts))
        ordered = [tuple(place) for place in layouts[0][0]]
        return [place for place in ordered if place in common], min(losses for _, losses in layouts)  # type: ignore[misc]

    def pack(self, calls: Sequence[ModuleCall], losses: Sequence[RecordedLoss], rank: int) -> Tensor:
        """The sums of this process; zeros where it takes no part."""
        if rank not in self._ranks:
            return torch.zeros(self.size, dtype=torch.float64)
        known = {call.key: call for call in calls}
        parts = [self._of_call(known.get(key), units, rank) for key, units in self._places.items()]
        given = [loss.value / len(self._ranks) for loss in losses[: self._losses]]
        parts.append(torch.zeros(self._losses - len(given), dtype=torch.float64))
        device = next((part.device for part in (*parts, *given) if part.device.type != "cpu"), torch.device("cpu"))
        return torch.cat([part.to(device, torch.float64) for part in (*parts, *given)])

    def _of_call(self, call: ModuleCall | None, units: int, rank: int) -> Tensor:
        if call is None or not call.outputs or _units(call) != units:
            return torch.zeros(_SCALARS + len(self._ranks) + units, dtype=torch.float64)
        (out,) = folded_outputs(call.outputs)
        inputs = next(iter(folded_outputs(call.inputs)), None)
        (grad,) = folded_gradients(call.gradients)
        none = out.norms.new_zeros(1)
        sums = [out.norms.square(), out.sums, none if grad.norms is None else grad.norms.square()]
        sums += [none if inputs is None else inputs.norms.square(), sum(call.at_bounds, start=none)]
        counts = [out.entries, out.samples, grad.entries, grad.samples, grad.fired > 1]
        counts += [0, 0] if inputs is None else [inputs.entries, inputs.samples]
        largest = none.new_zeros(len(self._ranks), dtype=torch.float64)
        largest[self._ranks.index(rank)] = 0 if out.maxima is None else out.maxima[0]
        live = [(low != 0) | (high != 0) for low, high in folded_bounds(call.unit_bounds)] if units else []
        numbers = torch.tensor(counts, dtype=torch.float64, device=none.device)
        given = [none if one is None else one for one in sums]
        return torch.cat([one.reshape(-1).double() for one in (*given, numbers, largest, *live)])

    def unpack(self, summed: Tensor, calls: Sequence[ModuleCall], losses: Sequence[RecordedLoss]) -> None:
        """Put the sums over all processes in place of those of this one."""
        summed, known, start = summed.cpu(), {call.key: call for call in calls}, 0
        for key, units in self._places.items():
            end = start + _SCALARS + len(self._ranks) + units
            call = known.get(key)
            if call is not None and call.outputs and _units(call) == units:
                self._into(call, summed[start:end])
            start = end
        for loss, value in zip(losses[: self._losses], summed[start:], strict=False):
            loss.part = None if loss.part is None else loss.part * (value / loss.value.cpu()).to(loss.part.device)
            loss.value = value.reshape(1)

    def _into(self, call: ModuleCall, found: Tensor) -> None:
        squares, sums, grads, ins, at_bounds = (one.reshape(1) for one in found[:5])
        entries, samples, grad_entries, grad_samples, twice, in_entries, in_samples = map(
            int, found[5:_SCALARS].tolist()
        )
        largest = found[_SCALARS : _SCALARS + len(self._ranks)].amax().reshape(1)
        call.outputs = (_output(squares, entries, samples, sums, largest),)
        if call.inputs:
            call.inputs = (_output(ins, in_entries, in_samples),)
        if call.at_bounds:
            call.at_bounds = (at_bounds,)
        if call.unit_bounds:
            live = found[_SCALARS + len(self._ranks) :]
            call.unit_bounds = ((live, live),)
        (own,) = folded_gradients(call.gradients)
        if grad_entries:  # the processes differentiate the mean of their losses
            pooled = Gradient(own.reason)
            pooled.norms, pooled.entries, pooled.samples = grads.sqrt() / len(self._ranks), grad_entries, grad_samples
            pooled.fired = 2 if twice else 1
            pooled.halves, pooled.halves_samples = own.halves, own.halves_samples or own.samples
            call.gradients = (pooled,)


_SCALARS = 12  # numbers of each call beside its largest entries and units


def _units(call: ModuleCall) -> int:
    """The units of an activation whose dead ones are counted."""
    sizes = {high.numel() for _, high in call.unit_bounds}
    return sizes.pop() if len(sizes) == 1 else 0


def _output(
    squares: Tensor, entries: int, samples: int, sums: Tensor | None = None, top: Tensor | None = None
) -> Output:
    found = Output(squares.sqrt(), entries, sums, top)
    found.samples = samples
    return found
