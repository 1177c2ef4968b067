"""What an engine tells while runs go on, and how each of them ended."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended: complete, diverged, unfinished (stopped on request) or failed, with the reason."""

    run: str
    state: str
    message: str | None = None
    detail: str | None = None  # of a failure that was not foreseen: its traceback, or what the process wrote
    log: str | None = None  # where the log of a failed run is, if there is one
    reused: bool = False  # it was in the store already
    node: str | None = None  # of a cluster: where it ended


@dataclass(frozen=True, kw_only=True)
class Event:
    """A run started, finished an epoch, or ended."""

    run: str
    epoch: int
    epochs: int
    loss: float | None = None
    outcome: Outcome | None = None
    node: str | None = None  # of a cluster: where it is trained
    starts: bool = False  # a worker has taken it up
