"""One line that says how far a run is: on a terminal and in a notebook, nowhere else."""

import sys
from types import TracebackType
from typing import Any, Self, TextIO

from sonde.core.errors import printable
from sonde.training.session import Progress

WIDTH = 24  # of the bar


class ProgressLine:
    """Follows a run as `on_progress`.  A terminal's line is gone at the end; a notebook's stays, and says the end."""

    def __init__(self, run: str, epochs: int) -> None:
        self.run, self.epochs = run, epochs
        self.terminal: TextIO | None = None
        self.cell: Any = None

    def __enter__(self) -> Self:
        if (shell := _notebook()) is not None:
            self.cell = shell(_text(self.start), raw=True, display_id=True)
        elif sys.stderr is not None and sys.stderr.isatty():
            self.terminal = sys.stderr
            self._write(self.start)
        return self

    @property
    def start(self) -> str:
        return f"{self.run}: {_bar(0, self.epochs)} 0/{self.epochs} epochs"

    def __call__(self, progress: Progress) -> None:
        done = f"{progress.epoch}/{progress.epochs} epochs"
        loss = "" if progress.loss is None else f", loss {progress.loss:.4g}"
        state = "" if progress.state == "unfinished" else f", {progress.state}"
        line = f"{progress.run}: {_bar(progress.epoch, progress.epochs)} {done}{loss}{state}"
        if self.cell is not None:
            self.cell.update(_text(line), raw=True)
        elif self.terminal is not None:
            self._write(line)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.terminal is not None:
            self._write("")

    def _write(self, line: str) -> None:
        """In the place of the line before; one that is cut stays one line."""
        import shutil

        assert self.terminal is not None
        self.terminal.write(f"\r{printable(line)[: shutil.get_terminal_size().columns - 1]}\x1b[K")
        self.terminal.flush()


def _bar(done: int, total: int) -> str:
    filled = WIDTH * done // max(total, 1)
    return "━" * filled + "─" * (WIDTH - filled)


def _text(line: str) -> dict[str, str]:
    return {"text/plain": printable(line)}


def _notebook() -> Any:
    """How the notebook shows something, where this is one."""
    if (ipython := sys.modules.get("IPython")) is None:
        return None
    shell = ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import display

    return display
