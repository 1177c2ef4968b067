"""What is kept of a run: its log, as the engine and its workers write it, and what its process wrote."""

import contextlib
import io
import os
import sys
import tempfile
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sonde.core.errors import SondeError

if TYPE_CHECKING:
    from sonde.store.folder import RunFolder

OUTPUT_KEPT = 64_000  # bytes: the end of what a process wrote


class RunLog:
    """Lines with their time.  What is told before the run's folder exists is kept until it does."""

    def __init__(self, folder: "RunFolder") -> None:
        self.folder = folder
        self.kept = ""
        self.there = False

    def tell(self, line: str, body: str = "") -> None:
        """A line, and below it a text as it is; a log that cannot be written stops no run."""
        self.kept += f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}\n"
        if body:
            self.kept += body if body.endswith("\n") else f"{body}\n"
        self.there = self.there or self.folder.exists()
        if self.there:
            with suppress(SondeError):
                self.folder.log(self.kept)
            self.kept = ""


class ProcessOutput:
    """What a process writes to stdout and stderr, readable after it died.

    A file for one process; it loses its name as soon as the process has opened it, so none is left behind.
    """

    def __init__(self) -> None:
        self._file, self.path = tempfile.mkstemp(prefix="sonde-")

    def close(self) -> str:
        """The last of what was written."""
        with open(self._file, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - OUTPUT_KEPT))
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
