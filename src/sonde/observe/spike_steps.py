"""The steps around a spike: those before it are written from the ring, those after it are watched.

Several processes have to watch the same steps.  So each tells the others of its spikes in the collective of the next
watched step, and all of them watch the steps after that one.  There is no further collective.  Of sharded parameters,
the parts in the rings are added up by the collectives of these steps.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import Tensor

from sonde.observe.bands import DENSE
from sonde.observe.local_parts import is_initialised
from sonde.observe.ring import Ring, RingStep
from sonde.observe.ring_sums import RingSums
from sonde.observe.row_writer import RowWriter
from sonde.observe.step_record import RecordedLoss, StepRecord


class SpikeSteps:
    """Writes the ring, and tells which steps are watched after a spike."""

    def __init__(self, ring: Ring, writer: RowWriter, sharded: Mapping[str, int]) -> None:
        self._ring, self._writer, self._sharded = ring, writer, sharded
        self._until = 0  # steps before it are watched
        self._spikes: list[dict[str, Any]] = []  # facts: which number left its band, and when
        self._untold: dict[str, int] = {}  # of these, the last of each kind, until the others know of it
        self._due: list[RingStep] = []  # whose parts are in the collective of this step
        rank, self._world = (dist.get_rank(), dist.get_world_size()) if is_initialised() else (0, 1)
        self._sums = RingSums(sharded, rank, self._world)

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

    def unpack(self, step: int, summed: Tensor, members: int) -> None:
        """What all processes told each other."""
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
