"""Train configurations to their end, show progress, and report each run that did not complete."""

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

from sonde.cli.terminal import console, plural, progress_bar
from sonde.core.errors import print_notice
from sonde.engine import Event, RunOutcome, choose
from sonde.store.files import Place, make_folder, remove_stale

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
    study: str | None = None,
    **options: object,
) -> list[RunOutcome]:
    """Train every configuration that is not in the store yet and return the outcome of each.

    `study` names the study that asks for them, which each run records.  `options` are those of the engine, None where
    one was not given.  Exits with code 130 where the user stops it and with code 1 where every run failed.
    """

    run_all = choose(engine, options)
    make_folder(runs)
    if isinstance(runs, Path):
        remove_stale(runs)
    if engine == "local":  # on a cluster, the machines that train do this
        _prepare(configs, runs, data_root, device, quiet)
    epochs = sum(config.epochs for config in configs)
    try:
        with _progress(console(stderr=True), len(configs), epochs, quiet=quiet) as on_event:
            outcomes = run_all(
                configs,
                runs=runs,
                data_root=data_root,
                device=device,
                study=study,
                on_event=on_event,
                on_notice=print_notice,
                on_stop=_print_stopping,
            )
    except KeyboardInterrupt:
        raise _stopped() from None
    for outcome in outcomes:
        if outcome.state != "complete":
            _print_outcome(outcome, runs)
    if any(outcome.state == "unfinished" for outcome in outcomes):
        raise _stopped()
    if all(outcome.state == "failed" for outcome in outcomes):
        raise typer.Exit(1)
    return outcomes


def exit_code(outcomes: Sequence[RunOutcome]) -> int:
    """1 where a run failed or diverged, else 0."""
    return int(any(outcome.state in ("failed", "diverged") for outcome in outcomes))


def _prepare(configs: "Sequence[RunConfig]", runs: Place, data_root: Place | None, device: str, quiet: bool) -> None:
    """Refuse networks that do not fit into memory; find and decode the data of the runs that are still to train."""
    from sonde.config import label_of
    from sonde.store.load import load_manifests
    from sonde.store.schemas import ENDED
    from sonde.training.session import refuse_too_large, resolve_device

    found = resolve_device(device)
    for config in {repr(config.model): config for config in configs}.values():
        refuse_too_large(config, found)
    with_data = [config for config in configs if hasattr(config.task, "prepare")]
    stored = load_manifests(runs, [config.id for config in with_data]) if with_data else {}
    ended = {id for id, manifest in stored.items() if manifest.state in ENDED}
    tasks: list[Any] = list({repr(one.task): one.task for one in with_data if one.id not in ended}.values())
    for task in tasks:
        with progress_bar(f"preparing {label_of('task', task)}", quiet=quiet) as on_progress:
            task.prepare(data_root, on_progress)


def _stopped() -> typer.Exit:
    print_notice("stopped; the same command resumes where it was")
    return typer.Exit(130)


def _print_outcome(outcome: RunOutcome, runs: Place) -> None:
    """Print how a run ended; for an unexpected failure also the end of its log."""
    from sonde.store.folder import read_log

    log = f" (log: {outcome.log})" if outcome.log else ""
    node = f" on {outcome.node}" if outcome.node else ""
    print_notice(f"run {outcome.run} {outcome.state}{node}: {outcome.message or 'stopped'}{log}")
    if outcome.detail is not None:
        text = read_log(runs / outcome.run) or outcome.detail
        for line in text.splitlines()[-LOG_LINES:]:
            print(f"    {line}", file=sys.stderr)


def _print_stopping(running: int) -> None:
    finish = "1 run finishes its epoch and saves" if running == 1 else f"{running} runs finish their epoch and save"
    print_notice(f"{finish} it; Ctrl-C again stops at once")


@contextmanager
def _progress(to: Console, runs: int, epochs: int, *, quiet: bool) -> Iterator[Callable[[Event], None]]:
    """Yield a function that shows the events of `runs` runs with `epochs` epochs in total."""
    if quiet:
        yield lambda event: None
    elif to.is_terminal:
        with _rich_bars(to) as bars:
            yield _Bars(bars, runs, epochs)
    else:
        yield _Lines(to, runs)


def _how_it_ended(outcome: RunOutcome) -> str:
    if outcome.reused:
        return f"already {outcome.state}"
    return outcome.state if outcome.node is None else f"{outcome.state} on {outcome.node}"


class _Lines:
    """Print a line for each run that ends."""

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
    """Draw one bar for all runs and one for each run that trains."""

    def __init__(self, bars: Progress, runs: int, epochs: int) -> None:
        self.bars, self.runs, self.ended, self.epochs = bars, runs, 0, 0
        self.all = bars.add_task(self._so_far(), total=epochs, note="")
        self.tasks: dict[str, TaskID] = {}
        self.done: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        if event.run not in self.tasks:
            name = event.run.rpartition("-")[0] or event.run
            self.tasks[event.run] = self.bars.add_task(name, total=event.epochs, note="")
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
        return f"{self.ended} of {plural(self.runs, 'run')}"


def _rich_bars(console: Console) -> Progress:
    """Bars that keep their numbers on a narrow terminal, where the note is cut; a run is named without its hash."""
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
