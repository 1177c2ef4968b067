"""Rings of several processes: the sums that each lays out in the vector of the next collective."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sonde.observe.ring import RingStep, Trace

_KINDS = ("loss", "gradient")
_COUNTS = 4  # numbers of a step beside those of parameters


class RingSums:
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
