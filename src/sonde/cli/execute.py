"""Bring configurations to their end, showing progress and saying what went wrong with whom."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sonde.engine import local

if TYPE_CHECKING:
    from sonde.config import RunConfig

LOG_LINES = 20  # shown of the log of a failed run


def execute(
    configs: "Sequence[RunConfig]",
    *,
    runs: Path,
    jobs: int | None,
    data_root: Path | None,
    device: str,
    quiet: bool,
) -> list[local.Outcome]:
    """The outcome of every run; a stop on request ends the command here, and so does the failure of all."""
    from sonde.cli.output import console
    from sonde.cli.progress import count, watch
    from sonde.store import files
    from sonde.training.device import resolve_device

    resolve_device(device)
    files.make_folder(runs)
    for task in {config.task for config in configs}:
        with count(console(stderr=True), f"preparing {task.label}", quiet=quiet) as on_progress:
            task.prepare(data_root, on_progress)
    epochs = sum(config.epochs for config in configs)
    try:
        with watch(console(stderr=True), len(configs), epochs, quiet=quiet) as listener:
            outcomes = local.run_all(
                configs,
                runs=runs,
                jobs=jobs or os.cpu_count() or 1,
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


def _say_how_it_ended(outcome: local.Outcome, runs: Path) -> None:
    """One line; below it, where the failure was not foreseen, the end of the run's log."""
    from sonde.store.run import RunFolder

    log = f" (log: {outcome.log})" if outcome.log else ""
    _say(f"run {outcome.run} {outcome.state}: {outcome.message or 'stopped'}{log}")
    if outcome.detail is not None:
        text = RunFolder(runs / outcome.run).read_log() or outcome.detail
        for line in text.splitlines()[-LOG_LINES:]:
            print(f"    {line}", file=sys.stderr)


def _say_stopping(running: int) -> None:
    _say(f"{running} runs finish their epoch and save it; Ctrl-C again stops them at once")


def _say(text: str) -> None:
    print(f"sonde: {text}", file=sys.stderr)
