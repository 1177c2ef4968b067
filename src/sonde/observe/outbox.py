"""Sheets on their way out: they wait on the device until they are written as rows, many at once.

A thread beside the loop writes what has waited for ten seconds while no step ended, as in an evaluation.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import polars as pl
import torch
from torch import Tensor

from sonde.observe.heard_losses import HeardLoss
from sonde.observe.row_builder import Ledger
from sonde.observe.row_sinks import Sink
from sonde.observe.step_record import Sheet
from sonde.store.schemas import RunState

ROWS = 200  # that wait at most before they are written
SECONDS = 10.0  # for which they wait at most
LOOK = 1.0  # seconds between two looks of the thread beside the loop


class Outbox:
    """What waits to be written, and the facts that are written once."""

    def __init__(self, sink: Sink, run: str, describe: Callable[[], dict[str, Any] | None]) -> None:
        self.facts: dict[str, Any] = {}
        self._described = False  # whether they hold what the first step showed
        self._sink, self._ledger, self._describe = sink, Ledger(run), describe
        self._logged: Sheet | None = None  # the losses of one step that were told so far
        self._pending: list[Sheet] = []
        self._expected = 0
        self._deadline = 0.0
        self._alone = threading.RLock()
        self._over = threading.Event()
        self._beside: threading.Thread | None = None

    def add(self, sheet: Sheet) -> None:
        with self._alone:
            if self._logged is not None and self._logged.step < sheet.step:
                self._close_log()
            self._pending.append(sheet)
            self._expected += sheet.expected
            self._deadline = self._deadline or time.monotonic() + SECONDS
        if self._beside is None:
            self._beside = threading.Thread(target=self._write_beside, name="sonde.watch", daemon=True)
            self._beside.start()

    def _write_beside(self) -> None:
        """Until the watch is closed; whatever goes wrong here, the loop meets it again at its next flush."""
        synced = time.monotonic()
        while not self._over.wait(LOOK):
            with suppress(Exception), self._alone:
                now = time.monotonic()
                if self._deadline and now >= self._deadline and self._described and not _captures_graphs():
                    self.flush(self._pending[-1].step + 1)
                if now >= synced + SECONDS:
                    synced = now
                    self._sink.sync()

    def log(self, loss: Any, step: int, now: int) -> None:
        """A loss that the user tells; several of one step, as of micro-batches, are averaged."""
        if isinstance(loss, Tensor):
            loss = loss.detach()
            value = (loss if loss.is_floating_point() else loss.double()).mean().reshape(1)
        else:
            value = torch.tensor([float(loss)])
        if self._logged is None or self._logged.step != step:
            self._close_log()
            self.maybe_flush(now)
            self._logged = Sheet(step)
        self._logged.losses.append(HeardLoss(value))

    def _close_log(self) -> None:
        if self._logged is not None:
            told, self._logged = self._logged, None
            self.add(told)

    def maybe_flush(self, step: int) -> None:
        self._sink.beat()
        with self._alone:
            if not self._pending:
                return
            if self._expected >= ROWS or time.monotonic() >= self._deadline or not self._described:
                self.flush(step)

    def flush(self, step: int) -> None:
        """Bring over what waits on the device, and write it."""
        with self._alone:
            pending, self._pending, self._expected, self._deadline = self._pending, [], 0, 0.0
            if not pending:
                return
            rows = self._ledger.rows(pending)
            described = None if self._described else self._describe()
            if described is not None:
                self._described = True
                self.add_facts(described)
            self._sink.append(rows, step)

    def add_facts(self, more: dict[str, Any]) -> None:
        """Facts that were seen later than the rest."""
        self.facts = self.facts | more
        self._sink.facts(self.facts)

    def rows(self, step: int) -> pl.DataFrame:
        """All rows, those that wait included."""
        self._close_log()
        self.flush(step)
        return self._sink.rows()

    def close(self, state: RunState, step: int, message: str | None) -> None:
        self._over.set()
        with self._alone:
            self._close_log()
            self.flush(step)
            self._sink.close(state, step, message)


def _captures_graphs() -> bool:
    """Whether the program uses CUDA graphs: while one is captured, no other thread may wait for the device."""
    return getattr(torch.cuda.graphs.graph, "default_capture_stream", None) is not None
