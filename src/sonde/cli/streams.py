"""Standard output and error that cannot end a command: closed, full, or of an encoding that lacks a letter."""

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

NOBODY_READS = (errno.EPIPE, errno.EBADF)


class Steady:
    """A stream that takes everything.  After the first failure, which it keeps, the rest goes to the null device."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.failure: OSError | None = None
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.failure = self.failure or error
        with suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self.stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def steady_streams() -> tuple[Steady, Steady]:
    """Standard output and error; one that is closed is opened on the null device, before a file gets its number."""
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


def lost(stream: Steady) -> str | None:
    """Why output was lost that somebody wanted; a reader who went away wanted no more."""
    stream.flush()
    failure = stream.failure
    return None if failure is None or failure.errno in NOBODY_READS else failure.strerror or str(failure)
