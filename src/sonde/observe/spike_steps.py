"""The steps around a spike: those before it are written from the ring, those after it are watched.

Several processes have to watch the same steps.  So each tells the others of its spikes in the collective of the next
watched step, and all of them watch the steps after that one.  There is no further collective.  Of sharded parameters,
the parts in the rings are added up by the collectives of these steps.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sonde.observe.ring import DENSE, Ring, RingStep, Trace
from sonde.observe.row_writer import RowWriter
from sonde.observe.step_record import RecordedLoss, StepRecord
from sonde.observe.watched_modules import is_initialised

_KINDS = ("loss", "gradient")
_COUNTS = 4  # numbers of a step beside those of parameters


class SpikeSteps:
    """Writes the ring, and tells which steps are watched after a spike."""

    def __init__(self, ring: Ring, writer: RowWriter, sharded: Mapping[str, int]) -> None:
        self._ring, self._writer, self._sharded = ring, writer, sharded
        self._until = 0  # steps before it are watched
        self._spikes: list[dict[str, Any]] = []  # facts: which number left its band, and when
        self._untold: dict[str, int] = {}  # of these, the last of each kind, until the others know of it
        self._due: list[RingStep] = []  # whose parts are in the collective of this step
        rank, self._world = (dist.get_rank(), dist.get_world_size()) if is_initialised() else (0, 1)
        self._sums = _RingSums(sharded, rank, self._world)

    def is_dense(self, step: int) -> bool:
        """Whether the step is watched because of a spike before it."""
        return step < self._until

    def end_step(self, step: int, *, watched: bool, alone: bool) -> None:
        """A step has ended.  A process that is alone decides by itself which steps are watched."""
        found = [one | {"world": self._world} for one in self._ring.end_step(step, watched=watched)]
        if found:
            self._spikes += found
            self._untold |= {one["of"]: one["step"] for one in found}
            if alone:
                self._until = step + 1 + DENSE
            self._note()
        if (found or step + 1 == self._until) and not self._sharded:
            self._write(self._ring.take(step))

    def pack(self, step: int) -> Tensor:
        """What this process tells the others in a watched step."""
        self._due = self._ring.take(step) if self._sharded and self.is_dense(step) else []
        return self._sums.pack(self._untold, self._due)

    def write_received(self, step: int, summed: Tensor, members: int) -> None:
        """Write the steps of spikes that all processes told each other of."""
        found = self._sums.unpack(summed, self._due, members)
        self._write(self._due)
        self._due, self._untold = [], {}
        if not found:
            return
        self._until = step + 1 + DENSE
        known = {(one["step"], one["of"]) for one in self._spikes}
        self._spikes += [one | {"world": self._world} for one in found if (one["step"], one["of"]) not in known]
        self._note()
        if not self._sharded:
            self._write(self._ring.take(step))

    def _note(self) -> None:
        """Add the facts.  Steps up to `until` belong to a spike."""
        for one in self._spikes:
            if self._until > one["step"]:
                one.setdefault("until", self._until - 1)
        self._writer.add_facts({"spikes": [dict(one) for one in self._spikes]})

    def flush(self, step: int) -> None:
        """Write what the ring has of the steps after a spike so far; `step` is under way."""
        if self.is_dense(step) and not self._sharded:
            self._write(self._ring.take(step - 1))

    def _write(self, steps: list[RingStep]) -> None:
        """Pass steps of the ring on: without what a watched step has recorded itself."""
        for kept in steps:
            traces = list(kept.traces.values())
            losses = [] if kept.watched or len(kept.losses) != 1 else [RecordedLoss(kept.losses[0].reshape(1))]
            if kept.watched:
                traces = [replace(trace, gradients=None) for trace in traces]
            if traces or losses:
                self._writer.add(StepRecord(kept.step, losses=losses, traces=traces))


class _RingSums:
    """Where the sums over processes are: spikes of each, and squares of the parts of sharded parameters."""

    def __init__(self, places: Mapping[str, int], rank: int, world: int) -> None:
        self._places, self._rank, self._world = places, rank, world

    def pack(self, spikes: Mapping[str, int], steps: Sequence[RingStep]) -> Tensor:
        """What this process has: the steps of its spikes (+ 1) by kind; then moved, before, gradients, and entries of
        every sharded parameter, and sum and number of losses and traces, step by step.
        """
        told = torch.zeros(len(_KINDS), self._world, dtype=torch.float64)
        for kind, step in spikes.items():
            told[_KINDS.index(kind), self._rank] = step + 1
        return torch.cat([told.flatten(), *map(self._of_step, steps)])

    def _of_step(self, kept: RingStep) -> Tensor:
        many = len(self._places)
        found = torch.zeros(4 * many + _COUNTS, dtype=torch.float64)
        for trace in kept.traces.values():
            for norms, here, there in self._parts(trace):
                found[there] = norms[here].cpu().double().square()
            for name, size in zip(trace.names, trace.sizes, strict=True):
                if name in self._places:
                    found[3 * many + self._places[name]] = size
            found[-2] += trace.moved is not None
            found[-1] += trace.gradients is not None
        if len(kept.losses) == 1:
            found[-4], found[-3] = float(kept.losses[0]), 1
        return found

    def _parts(self, trace: Trace) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        members = (trace.names, trace.moved), (trace.names, trace.before), (trace.with_gradient, trace.gradients)
        for kind, (names, norms) in enumerate(members):
            if norms is not None:
                yield from places_of(norms, names, self._places.keys(), self._places, kind)

    def unpack(self, summed: Tensor, steps: Sequence[RingStep], members: int) -> list[dict[str, Any]]:
        """Put the sums in place of this process's own; the spikes of all processes."""
        summed = summed.cpu()
        many = len(_KINDS) * self._world
        told = summed[:many].reshape(len(_KINDS), self._world)
        for kept, found in zip(steps, summed[many:].reshape(len(steps), -1) if steps else (), strict=True):
            self._into(kept, found, members)
        return [
            {"step": int(told[kind, rank]) - 1, "of": _KINDS[kind], "rank": rank}
            for kind, rank in told.nonzero().tolist()
        ]

    def _into(self, kept: RingStep, found: Tensor, members: int) -> None:
        """A trace that a process does not have is undefined: its parts are missing in the sum."""
        many, traces = len(self._places), len(kept.traces)
        everywhere = found[-2:] == members * traces
        for trace in kept.traces.values():
            trace.moved = trace.moved if everywhere[0] else None
            trace.gradients = trace.gradients if everywhere[1] else None
            for norms, here, there in self._parts(trace):
                norms[here] = found[there].sqrt().to(norms)
            sizes = found[3 * many :].tolist()
            trace.samples = [
                int(sizes[self._places[name]]) if name in self._places else size
                for name, size in zip(trace.names, trace.sizes, strict=True)
            ]
        kept.losses = [found[-4] / found[-3]] if found[-3] and len(kept.losses) == 1 else kept.losses


def places_of(
    norms: Tensor, names: Sequence[str], sharded: Collection[str], places: Mapping[str, int], kind: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of a vector over parameters, where sharded ones are in it and in the sum of this kind; nothing if none is."""
    mine = [(here, places[name]) for here, name in enumerate(names) if name in sharded]
    if mine:
        here, there = torch.tensor(mine).T
        yield norms, here.to(norms.device), there + kind * len(places)
