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
    return f"already {outcome.state}" if outcome.reused else outcome.state


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
        self.bars, self.runs, self.ended = bars, runs, 0
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
            self.done[event.run] = event.epochs
            self.bars.console.print(f"{event.run} {describe(event.outcome)}")
        else:
            note = "" if event.loss is None else f"loss {event.loss:.4g}"
            self.bars.update(task, completed=event.epoch, note=note)
            self.done[event.run] = event.epoch
        done = f"{self.ended} of {self.runs} runs"
        self.bars.update(self.all, completed=sum(self.done.values()), description=done)


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True)),
        console=console,
        transient=True,
    )
