"""Writes step records as rows, many at once, into a store or into memory.

Records wait on the device.  A thread writes what has waited for ten seconds while no step ended, as in an evaluation.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import polars as pl
import torch
from torch import Tensor

from sonde.core.errors import SondeError
from sonde.metrics.rows import WATCHED
from sonde.observe import warn
from sonde.observe.row_builder import RowBuilder
from sonde.observe.step_record import FIRST_STEPS, RecordedLoss, StepRecord
from sonde.store.journal import Journal, read_watched
from sonde.store.schemas import RunState

MOST_ROWS_IN_MEMORY = 1_000_000  # in memory; then every other watched step is dropped
WAITING_ROWS = 1000  # that wait at most before they are written
WAITING_SECONDS = 10.0  # for which they wait at most
_CHECK_SECONDS = 1.0  # between two checks of the thread, and two heartbeats


class RowSink(ABC):
    """Takes rows as they come."""

    writes = True  # whether it keeps what it is given

    @abstractmethod
    def append(self, rows: pl.DataFrame, step: int) -> None:
        """Take the rows of the steps up to this one."""

    @abstractmethod
    def rows(self) -> pl.DataFrame:
        """All rows that were taken."""

    def renew_heartbeat(self) -> None:  # noqa: B027
        """Note that the run goes on."""

    def sync(self) -> None:  # noqa: B027
        """Bring what was written to the disk."""

    def facts(self, known: dict[str, Any]) -> None:  # noqa: B027
        """Write the facts, in place of those written before."""

    def close(self, state: RunState, step: int, message: str | None) -> None:  # noqa: B027
        """Write how the run ended."""


class NoSink(RowSink):
    """Keeps nothing: of a process that takes part in sums over parameters, and that is not rank 0."""

    writes = False

    def append(self, rows: pl.DataFrame, step: int) -> None:
        """Rows are not made for it."""

    def rows(self) -> pl.DataFrame:
        return pl.DataFrame(schema=WATCHED)


class MemorySink(RowSink):
    """Keeps rows in memory, at most a million of them."""

    def __init__(self, every: int) -> None:
        self.every, self.stride = every, 1
        self._frames: list[pl.DataFrame] = []
        self._many = 0

    def append(self, rows: pl.DataFrame, step: int) -> None:
        self._frames.append(self._thinned(rows) if self.stride > 1 else rows)
        self._many += self._frames[-1].height
        while self._many > MOST_ROWS_IN_MEMORY:
            self.stride *= 2
            kept = self._thinned(pl.concat(self._frames))
            if kept.height == self._many:
                return
            self._frames, self._many = [kept], kept.height

    def _thinned(self, rows: pl.DataFrame) -> pl.DataFrame:
        step = pl.col("step")
        return rows.filter((step < FIRST_STEPS) | (step % (self.every * self.stride) == 0))

    def rows(self) -> pl.DataFrame:
        return pl.concat([pl.DataFrame(schema=WATCHED), *self._frames])


class StoreSink(RowSink):
    """Appends rows to a store; keeps them in memory once the store cannot be written any more."""

    def __init__(self, journal: Journal, every: int) -> None:
        self.journal = journal
        self._every, self._rest = every, MemorySink(every)
        self._facts: dict[str, Any] | None = None  # that could not be written
        self.broken = False

    def append(self, rows: pl.DataFrame, step: int) -> None:
        if not self._try(lambda: self.journal.append(rows, step)):
            self._rest.append(rows, step)

    def renew_heartbeat(self) -> None:
        self.journal.touch()

    def sync(self) -> None:
        self._try(self.journal.sync)

    def facts(self, known: dict[str, Any]) -> None:
        self._facts = None if self._try(lambda: self.journal.write_facts(known)) else known

    def close(self, state: RunState, step: int, message: str | None) -> None:
        """What could not be written before is tried once more: there may be room again."""
        self.broken = False
        if (rest := self._rest.rows()).height and self._try(lambda: self.journal.append(rest, step)):
            self._rest = MemorySink(self._every)
        if self._facts is not None:
            self.facts(self._facts)
        self._try(lambda: self.journal.close(state, step, message))

    def rows(self) -> pl.DataFrame:
        try:
            stored = read_watched(self.journal.path)[1]
        except SondeError:
            if not self.broken:
                raise
            stored = pl.DataFrame(schema=WATCHED)
        return pl.concat([stored, self._rest.rows()])

    def _try(self, write: Any) -> bool:
        if self.broken:
            return False
        try:
            write()
        except (SondeError, OSError) as error:
            self.broken = True
            warn(
                f"the watch cannot write any more: {error}. Training goes on; what was written stays, "
                "and what follows is kept in memory and lost when the process ends"
            )
            return False
        return True


class RowWriter:
    """Holds the records that wait to be written, and the facts."""

    def __init__(self, sink: RowSink, run: str, describe: Callable[[], dict[str, Any] | None]) -> None:
        self.facts: dict[str, Any] = {}
        self._described = False  # whether they hold what the first step showed
        self._sink, self._builder, self._describe = sink, RowBuilder(run), describe
        self._logged: StepRecord | None = None  # the losses of one step that were logged so far
        self._pending: list[StepRecord] = []
        self._expected = 0
        self._deadline = 0.0
        self._heartbeat_due = 0.0
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, record: StepRecord) -> None:
        """Queue the record of a step; a thread writes it later."""
        if not self._sink.writes:
            return
        with self._lock:
            if self._logged is not None and self._logged.step < record.step:
                self._close_log()
            self._pending.append(record)
            self._expected += record.expected_rows
            self._deadline = self._deadline or time.monotonic() + WAITING_SECONDS
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_waiting, name="sonde.watch", daemon=True)
            self._thread.start()

    def _write_waiting(self) -> None:
        """Run until the watch is closed.  An error here is raised again at the next flush of the loop."""
        synced = time.monotonic()
        while not self._over.wait(_CHECK_SECONDS):
            with suppress(Exception), self._lock:
                now = time.monotonic()
                if self._deadline and now >= self._deadline and self._described and not _captures_graphs():
                    self.flush(self._pending[-1].step + 1)
                if now >= synced + WAITING_SECONDS:
                    synced = now
                    self._sink.sync()

    def log(self, loss: Any, step: int, now: int) -> None:
        """Record a loss that the user logs; several of one step, as of micro-batches, are averaged."""
        self._log_of(step, now).losses.append(RecordedLoss(_one_number(loss)))

    def drop_losses(self, step: int) -> None:
        """Forget the losses that were logged of this step so far."""
        if self._logged is not None and self._logged.step == step:
            self._logged.losses = []

    def drop_losses_of_samples(self, step: int) -> bool:
        """Forget the losses of a step that are of single samples; False if there are none, or they are written."""
        with self._lock:
            found = [record for record in self._pending if record.step == step and record.of_samples]
            for record in found:
                record.losses = []
        return bool(found)

    def log_success(self, name: str, value: Any, step: int, now: int) -> None:
        """Record a metric of success that the user logs; the last of a step counts."""
        self._log_of(step, now).success[name] = _one_number(value)

    def _log_of(self, step: int, now: int) -> StepRecord:
        """The record of what is logged of a step."""
        if self._logged is None or self._logged.step != step:
            self._close_log()
            self.maybe_flush(now)
            self._logged = StepRecord(step)
        return self._logged

    def _close_log(self) -> None:
        if self._logged is not None:
            logged, self._logged = self._logged, None
            self.add(logged)

    def maybe_flush(self, step: int) -> None:
        """Write what waits if it is much, or old; send a heartbeat every second."""
        now = time.monotonic()
        if now >= self._heartbeat_due:
            self._heartbeat_due = now + _CHECK_SECONDS
            self._sink.renew_heartbeat()
        if not self._pending:
            return
        with self._lock:
            if self._expected >= WAITING_ROWS or now >= self._deadline or not self._described:
                self.flush(step)

    def flush(self, step: int) -> None:
        """Transfer what waits on the device, and write it."""
        with self._lock:
            pending, self._pending, self._expected, self._deadline = self._pending, [], 0, 0.0
            if not pending:
                return
            rows = self._builder.rows(pending)
            described = None if self._described else self._describe()
            if described is not None:
                self._described = True
                self.add_facts(described)
            self._sink.append(rows, step)

    def add_facts(self, more: dict[str, Any]) -> None:
        """Facts that were seen later than the rest."""
        self.facts = self.facts | more
        self._sink.facts(self.facts)

    def add_rows(self, rows: pl.DataFrame, step: int) -> None:
        """Rows that were measured elsewhere, behind those that wait."""
        with self._lock:
            self.flush(step)
            self._sink.append(rows, step)

    def rows(self, step: int) -> pl.DataFrame:
        """All rows, those that wait included."""
        self._close_log()
        self.flush(step)
        return self._sink.rows()

    def close(self, state: RunState, step: int, message: str | None) -> None:
        self._over.set()
        with self._lock:
            self._close_log()
            self.flush(step)
            self._sink.close(state, step, message)


def _one_number(value: Any) -> Tensor:
    """A number, or the mean of a tensor, as a vector of one."""
    if isinstance(value, Tensor):
        known: Tensor = value.detach()
        return (known if known.is_floating_point() else known.double()).mean().reshape(1)
    return torch.tensor([float(value)])


def _captures_graphs() -> bool:
    """Whether the program uses CUDA graphs: while one is captured, no other thread may wait for the device."""
    return getattr(torch.cuda.graphs.graph, "default_capture_stream", None) is not None
