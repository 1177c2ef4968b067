"""What a process writes to stdout and stderr, readable after it died."""

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

KEPT = 64_000  # bytes: the end of what was written


class Output:
    """A file for one process; it loses its name as soon as the process has opened it, so none is left behind."""

    def __init__(self) -> None:
        self._file, self.path = tempfile.mkstemp(prefix="sonde-")

    def close(self) -> str:
        """The last of what was written."""
        with open(self._file, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - KEPT))
            text = file.read().decode(errors="replace")
        Path(self.path).unlink(missing_ok=True)
        return text


def redirect(path: str) -> None:
    """Send what this process writes, and what C code writes in it, to the file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    with contextlib.suppress(PermissionError):  # Windows keeps the name of an open file
        os.unlink(path)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a killed process flushes nothing
