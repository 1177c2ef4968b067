"""Where rows go: into a store, into memory, or first the one and then the other."""

from typing import Any, Protocol

import polars as pl

from sonde.core.errors import SondeError
from sonde.metrics.rows import WATCHED
from sonde.observe.schedule import FIRST
from sonde.observe.watch_warning import warn
from sonde.store.journal import Journal, read_watched
from sonde.store.schemas import RunState

MOST = 1_000_000  # rows in memory; then every other watched step is let go


class Sink(Protocol):
    """Takes rows as they come."""

    def append(self, rows: pl.DataFrame, step: int) -> None: ...
    def beat(self) -> None: ...
    def sync(self) -> None: ...
    def facts(self, known: dict[str, Any]) -> None: ...
    def close(self, state: RunState, step: int, message: str | None) -> None: ...
    def rows(self) -> pl.DataFrame: ...


class Memory:
    """Rows that are kept as long as the watch is; never more than a million of them."""

    def __init__(self, every: int) -> None:
        self.every, self.stride = every, 1
        self._frames: list[pl.DataFrame] = []
        self._many = 0

    def append(self, rows: pl.DataFrame, step: int) -> None:
        self._frames.append(self._thinned(rows) if self.stride > 1 else rows)
        self._many += self._frames[-1].height
        while self._many > MOST:
            self.stride *= 2
            kept = self._thinned(pl.concat(self._frames))
            if kept.height == self._many:
                return
            self._frames, self._many = [kept], kept.height

    def _thinned(self, rows: pl.DataFrame) -> pl.DataFrame:
        step = pl.col("step")
        return rows.filter((step < FIRST) | (step % (self.every * self.stride) == 0))

    def beat(self) -> None:
        pass

    def sync(self) -> None:
        pass

    def facts(self, known: dict[str, Any]) -> None:
        pass

    def close(self, state: RunState, step: int, message: str | None) -> None:
        pass

    def rows(self) -> pl.DataFrame:
        return pl.concat([pl.DataFrame(schema=WATCHED), *self._frames])


class Stored:
    """Rows in a store; in memory from the moment the store cannot be written any more."""

    def __init__(self, journal: Journal, every: int) -> None:
        self.journal = journal
        self._every, self._rest = every, Memory(every)
        self._facts: dict[str, Any] | None = None  # that could not be written
        self.broken = False

    def append(self, rows: pl.DataFrame, step: int) -> None:
        if not self._try(lambda: self.journal.append(rows, step)):
            self._rest.append(rows, step)

    def beat(self) -> None:
        self.journal.beat()

    def sync(self) -> None:
        self._try(self.journal.sync)

    def facts(self, known: dict[str, Any]) -> None:
        self._facts = None if self._try(lambda: self.journal.facts(known)) else known

    def close(self, state: RunState, step: int, message: str | None) -> None:
        """What could not be written before is tried once more: there may be room again."""
        self.broken = False
        if (rest := self._rest.rows()).height and self._try(lambda: self.journal.append(rest, step)):
            self._rest = Memory(self._every)
        if self._facts is not None:
            self.facts(self._facts)
        self._try(lambda: self.journal.close(state, step, message))

    def rows(self) -> pl.DataFrame:
        try:
            stored = read_watched(self.journal.folder)[1]
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
