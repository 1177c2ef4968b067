"""The process around a command: standard output and error that cannot end it, and the signals that stop it."""

import errno
import io
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from sonde.core.errors import printable

_READER_GONE = (errno.EPIPE, errno.EBADF)


class Steady:
    """A stream that never raises.  It keeps the first failure and sends the rest to the null device.

    Letters that the stream's encoding lacks are written as escapes.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.failure: OSError | None = None
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Write the text, or drop it after a failure."""
        try:
            return self.stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        """Flush the stream; a failure is kept, not raised."""
        try:
            self.stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.failure = self.failure or error
        with suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self.stream.fileno())

    def lost_output(self) -> str | None:
        """Why output was lost, or None.  A reader that closed its pipe wanted no more: that is not a loss."""
        self.flush()
        failure = self.failure
        return None if failure is None or failure.errno in _READER_GONE else failure.strerror or str(failure)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Printable:
    """A stream that removes control sequences, which a terminal would obey; `unfiltered` is the stream itself."""

    def __init__(self, stream: TextIO | Steady) -> None:
        self.unfiltered = stream

    def write(self, text: str) -> int:
        """Write the text without control sequences."""
        return self.unfiltered.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


def steady_streams() -> tuple[Steady, Steady]:
    """Standard output and error.  A closed one is opened on the null device, before a file can take its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, number)
            if nowhere != number:
                os.close(nowhere)
            else:
                os.set_inheritable(nowhere, True)
    streams = zip((sys.stdout, sys.stderr), (1, 2), strict=True)
    out, error = (stream or os.fdopen(number, "w", encoding="utf-8", closefd=False) for stream, number in streams)
    return Steady(out), Steady(error)


@contextmanager
def stopping_signals() -> Iterator[deque[int]]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does; yields the signals that arrived.

    A signal that was ignored when the command began stays ignored: SIGHUP after `nohup`, SIGINT in a script's job.
    """
    arrived: deque[int] = deque()

    def handle(number: int, frame: object) -> None:
        arrived.append(number)
        raise KeyboardInterrupt

    usual = signal.SIG_DFL, signal.default_int_handler
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: was for number in numbers if (was := signal.getsignal(number)) in usual}
    for number in before:
        signal.signal(number, handle)
    try:
        yield arrived
    finally:
        for number, was in before.items():
            signal.signal(number, was)
