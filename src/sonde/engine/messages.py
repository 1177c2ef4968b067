"""Between an engine and its caller: how runs go on and end; Ctrl-C, once to ask and twice to insist."""

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType


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
    """A connection to be read after the first Ctrl-C, which interrupts nothing; the second is a KeyboardInterrupt."""
    heard, told = multiprocessing.Pipe(duplex=False)

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        told.send_bytes(b"stop")

    main = threading.current_thread() is threading.main_thread()  # others hear no signals
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # in the background it is ignored
    if main and usual:
        signal.signal(signal.SIGINT, handle)
    try:
        yield heard
    finally:
        if main and usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        heard.close()
        told.close()
