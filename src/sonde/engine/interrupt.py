"""Ctrl-C, once to ask and twice to insist."""

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import FrameType


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
