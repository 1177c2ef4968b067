"""Between an engine and its caller: how runs go on and end; Ctrl-C, once to ask and twice to insist."""

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]
STOPPING = ("SIGINT", "SIGTERM", "SIGHUP")  # those that there are on this system


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


@contextmanager
def first_ctrl_c() -> Iterator[Connection]:
    """A connection to be read after the first Ctrl-C, which interrupts nothing; the second is a KeyboardInterrupt.

    The same holds for every signal whose handler raises KeyboardInterrupt.  Signals that are ignored stay ignored.
    """
    heard, told = multiprocessing.Pipe(duplex=False)
    before: dict[int, Handler] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        restore()
        try:
            before[number](number, frame)
        except KeyboardInterrupt:
            told.send_bytes(b"stop")

    if threading.current_thread() is threading.main_thread():  # others hear no signals
        for name in STOPPING:
            handler = signal.getsignal(number) if (number := getattr(signal, name, None)) else None
            if number is not None and callable(handler) and not isinstance(handler, signal.Handlers):
                before[number] = handler
                signal.signal(number, handle)
    try:
        yield heard
    finally:
        restore()
        heard.close()
        told.close()
