"""Progress of a study: bars with loss and time left on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from sonde.engine.outcome import Event, Outcome


@contextmanager
def count(console: Console, title: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar that appears with the first report of how much of how much is done; nothing where output is piped."""
    if quiet or not console.is_terminal:
        yield lambda done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(compact=True), console=console, transient=True) as bars:
        tasks: list[TaskID] = []

        def report(done: int, total: int) -> None:
            if not tasks:
                tasks.append(bars.add_task(title, total=total))
            bars.update(tasks[0], completed=done, total=total)

        yield report


class Listener(Protocol):
    def __call__(self, event: Event) -> None: ...


@contextmanager
def watch(console: Console, runs: int, epochs: int, *, quiet: bool) -> Iterator[Listener]:
    """A listener for the events of `runs` runs of `epochs` epochs in all."""
    if quiet:
        yield lambda event: None
    elif console.is_terminal:
        with _bars(console) as bars:
            yield Bars(bars, runs, epochs)
    else:
        yield Lines(console, runs)


def describe(outcome: Outcome) -> str:
    if outcome.reused:
        return f"already {outcome.state}"
    return outcome.state if outcome.node is None else f"{outcome.state} on {outcome.node}"


class Lines:
    """A line for each run that ends."""

    def __init__(self, console: Console, runs: int) -> None:
        self.console, self.runs, self.ended = console, runs, 0
        self.losses: dict[str, float] = {}
        self.begin = time.monotonic()

    def __call__(self, event: Event) -> None:
        if event.loss is not None:
            self.losses[event.run] = event.loss
        if event.outcome is not None:
            self.ended += 1
            loss = f", loss {self.losses[event.run]:.4g}" if event.run in self.losses else ""
            spent = time.monotonic() - self.begin
            line = f"[{self.ended}/{self.runs}] {event.run} {describe(event.outcome)}{loss} ({spent:.1f} s)"
            self.console.print(line, soft_wrap=True)


class Bars:
    """One bar for the study, one for each run under way."""

    def __init__(self, bars: Progress, runs: int, epochs: int) -> None:
        self.bars, self.runs, self.ended, self.epochs = bars, runs, 0, 0
        self.all = bars.add_task(f"0 of {runs} runs", total=epochs, note="")
        self.tasks: dict[str, TaskID] = {}
        self.done: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        if event.run not in self.tasks:
            self.tasks[event.run] = self.bars.add_task(event.run, total=event.epochs, note="")
        task = self.tasks[event.run]
        if event.outcome is not None:
            self.bars.remove_task(task)
            self.ended += 1
            self.bars.console.print(f"{event.run} {describe(event.outcome)}")
        else:
            loss = None if event.loss is None else f"loss {event.loss:.4g}"
            note = " ".join(word for word in (loss, event.node and f"on {event.node}") if word)
            self.bars.update(task, completed=event.epoch, note=note)
        self.epochs += event.epoch - self.done.get(event.run, 0)
        self.done[event.run] = event.epoch
        done = f"{self.ended} of {self.runs} runs"
        self.bars.update(self.all, completed=self.epochs, description=done)


def _bars(console: Console) -> Progress:
    """Where the terminal is narrow, numbers stay and the note is cut."""
    return Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=None, table_column=Column(min_width=4, max_width=6)),
        MofNCompleteColumn(table_column=Column(min_width=6, no_wrap=True)),
        TimeRemainingColumn(compact=True, table_column=Column(min_width=5, no_wrap=True)),
        TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        console=console,
        transient=True,
        expand=True,
    )
