"""Several processes that train together: one collective a watched step adds up what each of them has read.

Of parameters that they hold together (DTensor: FSDP2 `fully_shard`, tensor parallelism), these are the squares of all
parts: of weights, gradients and updates.  Of modules, where each process has a part of the batch, they are the sums of
`sonde.observe.shards`.  The collective runs in a process group of its own, so that it never meets one of the
training.  In the first step the processes agree, through the store of the process group, that all of them watch the
same.  Where they do not, there is no collective: sharded parameters are undefined, and outputs are those of rank 0.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sonde.observe import warn
from sonde.observe.spike_steps import SpikeSteps, places_of
from sonde.observe.step_record import (
    Gradient,
    ModuleCall,
    Output,
    RecordedLoss,
    folded_bounds,
    folded_gradients,
    folded_outputs,
)
from sonde.observe.watched_modules import WatchedModel, is_initialised, is_sharded

if TYPE_CHECKING:
    from sonde.observe.step_record import ModuleCall, RecordedLoss
    from sonde.observe.updates import ParameterNorms


_NO_GROUP = "the process group is not initialised: call sonde.watch while it is"
_LATER = "the parameter was sharded or replaced after the watch began: call sonde.watch after that"
_TWICE = "the parameter is sharded, and two optimisers hold it"
_NOT_FIRST = "rank 0 records the parameters"

_numbers = itertools.count()  # of the watches of this process; the same in every process that runs the same program


class Shards:
    """What a process shares with others, and the collective that adds it up."""

    def __init__(self, model: WatchedModel, every: int, on_ranks: Callable[[int], None]) -> None:
        self._on_ranks = on_ranks  # is told how many processes are pooled
        whole = model.model()
        self._peers = data_ranks(whole) if whole is not None and is_initialised() else []
        self._sums: CallSums | None = None
        named = ((model.names.get(id(p)), p) for p in model.parameters if is_sharded(p))
        sharded: dict[str, Any] = {name: p for name, p in named if name is not None}
        self.places = {name: place for place, name in enumerate(sorted(sharded))}
        self._reason: str | None = None  # why there is no collective
        self._group: Any = None
        self._members = 0  # processes in it
        self._beside_first = False  # whether rank 0 holds parts of the same parameters or of the batch
        self.active = bool(sharded or self._peers)  # whether it takes part in sums
        self._watch = f"sonde/watch/{next(_numbers)}" if self.active else ""
        if not self.active:
            return
        if not is_initialised():
            self._stop(_NO_GROUP)
            return
        meshes = [p.device_mesh for p in sharded.values()]
        self._device = torch.device(meshes[0].device_type) if meshes else model.parameters[0].device
        ranks = {rank for mesh in meshes if 0 in (held := mesh.mesh.flatten().tolist()) for rank in held}
        ranks |= set(self._peers) if 0 in self._peers else set()
        modules = [watched.name for watched in model.modules]
        what = [every, [(name, list(sharded[name].shape)) for name in self.places], modules]
        mark = hashlib.sha256(json.dumps(what).encode()).hexdigest()
        self._beside_first = 0 in ranks
        _store().set(
            self._key(dist.get_rank()), json.dumps({"ranks": sorted(ranks), "mark": mark, "peers": self._peers})
        )

    @property
    def joined(self) -> bool:
        """Whether there is a collective in every watched step."""
        return self.active and self._reason is None

    def reduce(
        self,
        known: Sequence["ParameterNorms"],
        calls: Sequence["ModuleCall"],
        losses: Sequence["RecordedLoss"],
        spikes: SpikeSteps,
        step: int,
    ) -> None:
        """Replace what this process has read by sums over all; drop parameters whose norms cannot be had."""
        if self.joined:
            try:
                self._agree(calls, losses)
                self._drop(known)
                if self.joined:
                    told = self._add_up(known, calls, losses, spikes.pack(step))
                    spikes.write_received(step, told, self._members)
            except (RuntimeError, ValueError) as error:  # a process that does not come, or the end of the group
                self.leave()
                self._stop(f"the sum over processes failed ({str(error).splitlines()[0]})")
        self._drop(known)

    def _drop(self, known: Sequence["ParameterNorms"]) -> None:
        seen: set[str] = set()
        for found in known:
            found.drop({name: why for name in found.sharded if (why := self._why_not(name, seen)) is not None})
            seen.update(found.sharded)

    def _why_not(self, name: str, seen: set[str]) -> str | None:
        why = None if self._reason is None else f"the parameter is sharded, and {self._reason}"
        if name not in self.places:
            return why or _LATER
        return why or (_TWICE if name in seen else None)

    def _add_up(
        self,
        known: Sequence["ParameterNorms"],
        calls: Sequence["ModuleCall"],
        losses: Sequence["RecordedLoss"],
        told: Tensor,
    ) -> Tensor:
        """√Σ‖part‖² over the processes, by one collective; the vector has a place for every parameter in every step.

        The sum of `told`, which comes last in the vector, is returned.
        """
        squares = torch.zeros(3 * len(self.places), dtype=torch.float64, device=self._device)
        of_calls = squares[:0] if self._sums is None else self._sums.pack(calls, losses, dist.get_rank())
        squares = torch.cat([squares, of_calls.to(squares), told.to(squares)])
        parts = [part for found in known for part in self._parts(found)]
        for norms, here, there in parts:
            squares[there.to(squares.device)] = norms[here].to(squares).square()
        dist.all_reduce(squares, group=self._group)
        for norms, here, there in parts:
            norms[here] = squares[there.to(squares.device)].sqrt().to(norms)
        if self._sums is not None and dist.get_rank() == 0:
            self._sums.unpack(squares[3 * len(self.places) : len(squares) - len(told)], calls, losses)
        return squares[len(squares) - len(told) :]

    def _parts(self, found: "ParameterNorms") -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Norms of weights, gradients and updates: the vector, places of sharded ones in it, places in the sum."""
        gradients, updates = (found.with_gradient, found.gradients), (found.names, found.updates)
        for kind, (names, norms) in enumerate(((found.names, found.weights), gradients, updates)):
            if norms is not None:
                yield from places_of(norms, names, found.sharded, self.places, kind)

    # Which processes take part

    def _agree(self, calls: Sequence["ModuleCall"], losses: Sequence["RecordedLoss"]) -> None:
        """In the first step, join the processes that hold the parameters; later, stop if one of them has left."""
        if not is_initialised():
            self._stop(_NO_GROUP)
            return
        store = _store()
        if store.check([self._key("left")]):
            who = store.get(self._key("left")).decode()
            self._stop(f"rank {who} does not watch any more")
        elif self._group is None:
            store.set(self._key(f"calls/{dist.get_rank()}"), json.dumps(CallSums.layout(calls, losses)))
            self._join(store)

    def _join(self, store: Any) -> None:
        if not self._beside_first:
            self._reason = _NOT_FIRST
            return
        decided = json.loads(store.compare_set(self._key("decision"), "", json.dumps(self._proposal(store))))
        if "reason" in decided:
            self._stop(decided["reason"])
        elif dist.get_rank() not in decided["ranks"]:
            self._reason = _NOT_FIRST
        else:
            self._members = len(decided["ranks"])
            self._group = dist.new_group(decided["ranks"], timeout=self._timeout(), use_local_synchronization=True)
            self._pool(store, json.loads(store.get(self._key(0)))["peers"])

    def _pool(self, store: Any, peers: list[int]) -> None:
        """Agree on the calls that are pooled.  Whoever has joined has told the store what it called."""
        if peers:
            layouts = [json.loads(store.get(self._key(f"calls/{rank}"))) for rank in peers]
            self._sums = CallSums(*CallSums.shared(layouts), peers)
            self._on_ranks(len(peers))

    def _proposal(self, store: Any) -> dict[str, Any]:
        """The processes that rank 0 shares parameters with, or why there can be no collective.

        The first process that gets here decides for all.  It has gone through the model with the others, so that those
        that watch have told the store.
        """
        if not store.check([self._key(0)]):
            return {"reason": "rank 0 does not watch: call sonde.watch in every process"}
        first = json.loads(store.get(self._key(0)))
        absent = [rank for rank in first["ranks"] if not store.check([self._key(rank)])]
        if absent:
            return {"reason": f"rank {_listed(absent)} does not watch: call sonde.watch in every process"}
        marks = {rank: json.loads(store.get(self._key(rank)))["mark"] for rank in first["ranks"]}
        others = [rank for rank, mark in marks.items() if mark != first["mark"]]
        if others:
            same = "watch the same model with the same every= in every process"
            return {"reason": f"rank {_listed(others)} watches other modules or other steps: {same}"}
        return {"ranks": first["ranks"]}

    def _timeout(self) -> Any:
        """That of the program's own process group."""
        group: Any = dist.distributed_c10d._get_default_group()
        return getattr(group._get_backend(self._device).options, "_timeout", None)

    def _stop(self, reason: str) -> None:
        """No collective from now on."""
        self._reason = reason
        if self._peers:
            self._on_ranks(1)
        lost = "sharded parameters are undefined, and " if self.places else ""
        warn(f"{lost}outputs are those of rank 0 alone: {reason}")

    def leave(self) -> None:
        """Tell the other processes not to wait for this one.  This is no collective."""
        if self.active and self._reason is None and self._beside_first and is_initialised():
            with suppress(Exception):
                _store().set(self._key("left"), str(dist.get_rank()))
        self._reason = self._reason or "the watch is closed"

    def _key(self, what: object) -> str:
        return f"{self._watch}/{what}"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _store() -> Any:
    """The store through which the processes of the default group met."""
    return dist.distributed_c10d._get_default_store()


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
        return [place for place in ordered if place in common], min(losses for _, losses in layouts)

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
