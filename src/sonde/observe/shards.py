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
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from sonde.observe import warn
from sonde.observe.data_parallel import CallSums, data_ranks
from sonde.observe.watched_modules import WatchedModel

if TYPE_CHECKING:
    from sonde.observe.step_record import ModuleCall, RecordedLoss
    from sonde.observe.updates import ParameterNorms

_NO_GROUP = "the process group is not initialised: call sonde.watch while it is"
_LATER = "the parameter was sharded or replaced after the watch began: call sonde.watch after that"
_TWICE = "the parameter is sharded, and two optimisers hold it"
_ELSEWHERE = "the parameter is sharded over other processes than rank 0"
_NOT_FIRST = "rank 0 records the parameters"

_numbers = itertools.count()  # of the watches of this process; the same in every process that runs the same program


# The part that this process holds


def is_sharded(x: Tensor) -> bool:
    """Whether the tensor is a DTensor.  Its module is not imported for that: it takes long, and few programs use it."""
    known = sys.modules.get("torch.distributed.tensor")
    return known is not None and isinstance(x, known.DTensor)


def is_flat(x: Tensor) -> bool:
    """Whether a plain parameter is, or may be, a part of a flat parameter of FSDP1, which tells nothing of the rest."""
    return getattr(x, "_fsdp_flattened", False) and _is_initialised() and dist.get_world_size() > 1


def unreadable_part(x: Any) -> str | None:
    """Why the norm of a DTensor is not the root of a sum of squares over its parts, or None."""
    odd = [repr(placement) for placement in x.placements if not (_is_split(placement) or placement.is_replicate())]
    if odd:
        return f"a DTensor with the placement {', '.join(odd)} is not read: its parts are not entries of the whole"
    local = x.detach().to_local()
    if local.layout != torch.strided or local.is_complex():
        return "a sparse or complex DTensor is not read"
    if local.is_meta:
        return "a DTensor on the device meta has no values"
    return _ELSEWHERE if dist.is_initialized() and dist.get_rank() == 0 and not _counts(x) else None


def own_part(x: Tensor) -> Tensor:
    """The entries that this process counts: of a DTensor its part, or none if another process counts that part."""
    x = x.detach()
    if not is_sharded(x):
        return x
    held: Any = x
    part: Tensor = held.to_local()
    return part if _counts(held) else part.new_zeros(0)


def _is_split(placement: Any) -> bool:
    return bool(placement.is_shard()) or type(placement).__name__ == "_StridedShard"


def _counts(x: Any) -> bool:
    """Of several copies of a part, the one that counts has the place of rank 0 on the axes that are replicated."""
    mesh = x.device_mesh
    first = (mesh.mesh == 0).nonzero().tolist()
    here = mesh.get_coordinate()
    if not first or here is None:
        return False
    pairs = zip(x.placements, here, first[0], strict=True)
    return all(mine == its for placement, mine, its in pairs if placement.is_replicate())


# The norms of the whole


class Shards:
    """What a process shares with others, and the collective that adds it up."""

    def __init__(self, model: WatchedModel, every: int, on_ranks: Callable[[int], None]) -> None:
        self._on_ranks = on_ranks  # is told how many processes are pooled
        whole = model.model()
        self._peers = data_ranks(whole) if whole is not None and _is_initialised() else []
        self._sums: CallSums | None = None
        named = ((model.names.get(id(p)), p) for p in model.parameters if is_sharded(p))
        sharded: dict[str, Any] = {name: p for name, p in named if name is not None}
        self._places = {name: place for place, name in enumerate(sorted(sharded))}
        self._reason: str | None = None  # why there is no collective
        self._group: Any = None
        self.active = bool(sharded or self._peers)  # whether it takes part in sums
        self._watch = f"sonde/watch/{next(_numbers)}" if self.active else ""
        if not self.active:
            return
        if not _is_initialised():
            self._stop(_NO_GROUP)
            return
        meshes = [p.device_mesh for p in sharded.values()]
        self._device = torch.device(meshes[0].device_type) if meshes else model.parameters[0].device
        ranks = {rank for mesh in meshes if 0 in (held := mesh.mesh.flatten().tolist()) for rank in held}
        ranks |= set(self._peers) if 0 in self._peers else set()
        modules = [watched.name for watched in model.modules]
        what = [every, [(name, list(sharded[name].shape)) for name in self._places], modules]
        mark = hashlib.sha256(json.dumps(what).encode()).hexdigest()
        self._beside_first = 0 in ranks
        _store().set(
            self._key(dist.get_rank()), json.dumps({"ranks": sorted(ranks), "mark": mark, "peers": self._peers})
        )

    def reduce(
        self, known: Sequence["ParameterNorms"], calls: Sequence["ModuleCall"], losses: Sequence["RecordedLoss"]
    ) -> None:
        """Replace what this process has read by sums over all; drop parameters whose norms cannot be had."""
        if self.active and self._reason is None:
            try:
                self._agree(calls, losses)
                self._drop(known)
                if self._reason is None:
                    self._add_up(known, calls, losses)
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
        if name not in self._places:
            return why or _LATER
        return why or (_TWICE if name in seen else None)

    def _add_up(
        self, known: Sequence["ParameterNorms"], calls: Sequence["ModuleCall"], losses: Sequence["RecordedLoss"]
    ) -> None:
        """√Σ‖part‖² over the processes, by one collective; the vector has a place for every parameter in every step."""
        own = torch.zeros(3 * len(self._places), dtype=torch.float64)
        if self._sums is not None:
            own = torch.cat([own, self._sums.pack(calls, losses, dist.get_rank())])
        squares = own.to(self._device)
        parts = [part for found in known for part in self._parts(found)]
        for norms, here, there in parts:
            squares[there.to(squares.device)] = norms[here].to(squares).square()
        dist.all_reduce(squares, group=self._group)
        for norms, here, there in parts:
            norms[here] = squares[there.to(squares.device)].sqrt().to(norms)
        if self._sums is not None and dist.get_rank() == 0:
            self._sums.unpack(squares[3 * len(self._places) :], calls, losses)

    def _parts(self, found: "ParameterNorms") -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Norms of weights, gradients and updates: the vector, places of sharded ones in it, places in the sum."""
        gradients, updates = (found.with_gradient, found.gradients), (found.names, found.updates)
        for kind, (names, norms) in enumerate(((found.names, found.weights), gradients, updates)):
            mine = [(here, self._places[name]) for here, name in enumerate(names) if name in found.sharded]
            if norms is not None and mine:
                here, there = torch.tensor(mine).T
                yield norms, here.to(norms.device), there + kind * len(self._places)

    # Which processes take part

    def _agree(self, calls: Sequence["ModuleCall"], losses: Sequence["RecordedLoss"]) -> None:
        """In the first step, join the processes that hold the parameters; later, stop if one of them has left."""
        if not _is_initialised():
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
        lost = "sharded parameters are undefined, and " if self._places else ""
        warn(f"{lost}outputs are those of rank 0 alone: {reason}")

    def leave(self) -> None:
        """Tell the other processes not to wait for this one.  This is no collective."""
        if self.active and self._reason is None and _is_initialised():
            with suppress(Exception):
                _store().set(self._key("left"), str(dist.get_rank()))
        self._reason = self._reason or "the watch is closed"

    def _key(self, what: object) -> str:
        return f"{self._watch}/{what}"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _is_initialised() -> bool:
    return dist.is_available() and dist.is_initialized()


def _store() -> Any:
    """The store through which the processes of the default group met."""
    return dist.distributed_c10d._get_default_store()
