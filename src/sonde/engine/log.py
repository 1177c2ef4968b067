"""A run's log, as the engine and its workers write it."""

from contextlib import suppress
from datetime import UTC, datetime

from sonde.errors import SondeError
from sonde.store.run import RunFolder


class RunLog:
    """Lines with their time.  What is told before the run's folder exists is kept until it does."""

    def __init__(self, folder: RunFolder) -> None:
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
