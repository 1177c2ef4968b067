"""Bring configurations to their end, showing progress and saying what went wrong with whom."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from sonde.engine import Event, RunOutcome, choose
from sonde.store.files import Place

if TYPE_CHECKING:
    from sonde.config import RunConfig

LOG_LINES = 20  # shown of the log of a failed run


def execute(
    configs: "Sequence[RunConfig]",
    *,
    runs: Place,
    data_root: Place | None,
    device: str,
    quiet: bool,
    engine: str = "local",
    **options: object,
) -> list[RunOutcome]:
    """The outcome of every run; a stop on request ends the command here, and so does the failure of all.

    `options` are those of the engine, None where none was given.
    """
    from sonde.cli.terminal import console, count
    from sonde.config import label_of
    from sonde.core.atomic import remove_stale
    from sonde.store import files
    from sonde.training.device import refuse_too_large, resolve_device

    run_all = choose(engine, options)
    files.make_folder(runs)
    if isinstance(runs, Path):
        remove_stale(runs)
    if engine == "local":  # elsewhere the machines that train see to it
        found = resolve_device(device)
        for config in {repr(config.model): config for config in configs}.values():
            refuse_too_large(config, found)
        for task in _tasks_to_prepare(configs, runs):
            with count(f"preparing {label_of('task', task)}", quiet=quiet) as on_progress:
                task.prepare(data_root, on_progress)
    epochs = sum(config.epochs for config in configs)
    try:
        with _watched(console(stderr=True), len(configs), epochs, quiet=quiet) as listener:
            outcomes = run_all(
                configs,
                runs=runs,
                data_root=data_root,
                device=device,
                on_event=listener,
                on_notice=_say,
                on_stop=_say_stopping,
            )
    except KeyboardInterrupt:
        raise _stopped() from None
    for outcome in outcomes:
        if outcome.state != "complete":
            _say_how_it_ended(outcome, runs)
    if any(outcome.state == "unfinished" for outcome in outcomes):
        raise _stopped()
    if all(outcome.state == "failed" for outcome in outcomes):
        raise typer.Exit(1)
    return outcomes


def _tasks_to_prepare(configs: "Sequence[RunConfig]", runs: Place) -> list[Any]:
    """Those that find or decode data first, of the runs that are still to be trained."""
    from sonde.store.load import load_manifests
    from sonde.store.schemas import ENDED

    asking = [config for config in configs if hasattr(config.task, "prepare")]
    stored = load_manifests(runs, [config.id for config in asking]) if asking else {}
    ended = {id for id, manifest in stored.items() if manifest.state in ENDED}
    return list({repr(config.task): config.task for config in asking if config.id not in ended}.values())


def _stopped() -> typer.Exit:
    _say("stopped; the same command resumes where it was")
    return typer.Exit(130)


def _say_how_it_ended(outcome: RunOutcome, runs: Place) -> None:
    """One line; below it, where the failure was not foreseen, the end of the run's log."""
    from sonde.store.folder import RunFolder

    log = f" (log: {outcome.log})" if outcome.log else ""
    node = f" on {outcome.node}" if outcome.node else ""
    _say(f"run {outcome.run} {outcome.state}{node}: {outcome.message or 'stopped'}{log}")
    if outcome.detail is not None:
        text = RunFolder(runs / outcome.run).read_log() or outcome.detail
        for line in text.splitlines()[-LOG_LINES:]:
            print(f"    {line}", file=sys.stderr)


def _say_stopping(running: int) -> None:
    finish = "1 run finishes its epoch and saves" if running == 1 else f"{running} runs finish their epoch and save"
    _say(f"{finish} it; Ctrl-C again stops at once")


def _say(text: str) -> None:
    print(f"sonde: {text}", file=sys.stderr)


@contextmanager
def _watched(console: Console, runs: int, epochs: int, *, quiet: bool) -> Iterator[Callable[[Event], None]]:
    """A listener for the events of `runs` runs of `epochs` epochs in all."""
    if quiet:
        yield lambda event: None
    elif console.is_terminal:
        with _rich_bars(console) as bars:
            yield _Bars(bars, runs, epochs)
    else:
        yield _Lines(console, runs)


def _how_it_ended(outcome: RunOutcome) -> str:
    if outcome.reused:
        return f"already {outcome.state}"
    return outcome.state if outcome.node is None else f"{outcome.state} on {outcome.node}"


class _Lines:
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
            line = f"[{self.ended}/{self.runs}] {event.run} {_how_it_ended(event.outcome)}{loss} ({spent:.1f} s)"
            self.console.print(line, soft_wrap=True)


class _Bars:
    """One bar for the study, one for each run under way."""

    def __init__(self, bars: Progress, runs: int, epochs: int) -> None:
        self.bars, self.runs, self.ended, self.epochs = bars, runs, 0, 0
        self.all = bars.add_task(self._so_far(), total=epochs, note="")
        self.tasks: dict[str, TaskID] = {}
        self.done: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        if event.run not in self.tasks:
            self.tasks[event.run] = self.bars.add_task(
                event.run.rpartition("-")[0] or event.run, total=event.epochs, note=""
            )
        task = self.tasks[event.run]
        if event.outcome is not None:
            self.bars.remove_task(task)
            self.ended += 1
            self.bars.console.print(f"{event.run} {_how_it_ended(event.outcome)}")
        else:
            loss = None if event.loss is None else f"loss {event.loss:.4g}"
            note = " ".join(word for word in (loss, event.node and f"on {event.node}") if word)
            self.bars.update(task, completed=event.epoch, note=note)
        self.epochs += event.epoch - self.done.get(event.run, 0)
        self.done[event.run] = event.epoch
        self.bars.update(self.all, completed=self.epochs, description=self._so_far())

    def _so_far(self) -> str:
        return f"{self.ended} of {self.runs} run{'s' * (self.runs != 1)}"


def _rich_bars(console: Console) -> Progress:
    """Where the terminal is narrow, numbers and bars stay and the note is cut; a run is named without its hash."""
    return Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, max_width=28, overflow="ellipsis")),
        BarColumn(bar_width=None, table_column=Column(min_width=14, max_width=30, ratio=1)),
        MofNCompleteColumn(table_column=Column(min_width=6, no_wrap=True)),
        TimeRemainingColumn(compact=True, table_column=Column(min_width=5, no_wrap=True)),
        TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        console=console,
        transient=True,
        expand=True,
    )
