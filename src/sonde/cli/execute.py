"""Bring configurations to their end, showing progress and saying what went wrong with whom."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from sonde.engine.engines import choose
from sonde.engine.outcome import Outcome
from sonde.store.place import Place

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
) -> list[Outcome]:
    """The outcome of every run; a stop on request ends the command here, and so does the failure of all.

    `options` are those of the engine, None where none was given.
    """
    from sonde.cli.output import console
    from sonde.cli.progress import count, watch
    from sonde.config import label_of
    from sonde.store import files
    from sonde.training.device import resolve_device

    run_all = choose(engine, options)
    files.make_folder(runs)
    if engine == "local":  # elsewhere the machines that train see to it
        resolve_device(device)
        for task in {repr(config.task): config.task for config in configs}.values():
            if hasattr(task, "prepare"):
                with count(
                    console(stderr=True), f"preparing {label_of('task', task)}", quiet=quiet
                ) as on_progress:
                    task.prepare(data_root, on_progress)
    epochs = sum(config.epochs for config in configs)
    try:
        with watch(console(stderr=True), len(configs), epochs, quiet=quiet) as listener:
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


def _stopped() -> typer.Exit:
    _say("stopped; the same command resumes where it was")
    return typer.Exit(130)


def _say_how_it_ended(outcome: Outcome, runs: Place) -> None:
    """One line; below it, where the failure was not foreseen, the end of the run's log."""
    from sonde.store.run import RunFolder

    log = f" (log: {outcome.log})" if outcome.log else ""
    node = f" on {outcome.node}" if outcome.node else ""
    _say(f"run {outcome.run} {outcome.state}{node}: {outcome.message or 'stopped'}{log}")
    if outcome.detail is not None:
        text = RunFolder(runs / outcome.run).read_log() or outcome.detail
        for line in text.splitlines()[-LOG_LINES:]:
            print(f"    {line}", file=sys.stderr)


def _say_stopping(running: int) -> None:
    _say(f"{running} runs finish their epoch and save it; Ctrl-C again stops them at once")


def _say(text: str) -> None:
    print(f"sonde: {text}", file=sys.stderr)
