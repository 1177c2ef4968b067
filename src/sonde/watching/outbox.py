"""Sheets on their way out: they wait on the device until they are written as rows, many at once."""

import time
from collections.abc import Callable
from typing import Any

import polars as pl
import torch
from torch import Tensor

from sonde.store.run import State
from sonde.watching.heard_losses import HeardLoss
from sonde.watching.observations import Sheet
from sonde.watching.row_sinks import Sink
from sonde.watching.sheet_rows import Ledger

ROWS = 200  # that wait at most before they are written
SECONDS = 10.0  # for which they wait at most


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

    def add(self, sheet: Sheet) -> None:
        if self._logged is not None and self._logged.step < sheet.step:
            self._close_log()
        self._pending.append(sheet)
        self._expected += sheet.expected

    def log(self, loss: Any, step: int, now: int) -> None:
        """A loss that the user tells; several of one step, as of micro-batches, are averaged."""
        value = loss.detach().mean().reshape(1) if isinstance(loss, Tensor) else torch.tensor([float(loss)])
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
        if not self._pending:
            return
        now = time.monotonic()
        if not self._deadline:
            self._deadline = now + SECONDS
        if self._expected >= ROWS or now >= self._deadline or not self._described:
            self.flush(step)

    def flush(self, step: int) -> None:
        """Bring over what waits on the device, and write it."""
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

    def close(self, state: State, step: int, message: str | None) -> None:
        self._close_log()
        self.flush(step)
        self._sink.close(state, step, message)
