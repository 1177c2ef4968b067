"""Several processes that train together: one collective a watched step adds up what each of them has read.

Of parameters that they hold together (DTensor: FSDP2 `fully_shard`, tensor parallelism), these are the squares of all
parts: of weights, gradients and updates.  Of modules, where each process has a part of the batch, they are the sums of
`sonde.observe.data_parallel`.  The collective runs in a process group of its own, so that it never meets one of the
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
from torch import Tensor

from sonde.observe import warn
from sonde.observe.data_parallel import CallSums, data_ranks
from sonde.observe.local_parts import is_initialised, is_sharded
from sonde.observe.spike_steps import SpikeSteps, places_of
from sonde.observe.watched_modules import WatchedModel

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
                    spikes.unpack(step, told, self._members)
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
