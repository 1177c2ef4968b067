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
    with watch(console(stderr=True), len(configs), epochs, quiet=quiet) as listener:
        outcomes = local.run_all(
            configs,
            runs=runs,
            jobs=jobs or os.cpu_count() or 1,
            data_root=data_root,
            device=device,
            on_event=listener,
            on_stop=_say_stopping,
        )
    for outcome in outcomes:
        if outcome.state != "complete":
            print(
                f"sonde: run {outcome.run} {outcome.state}: {outcome.message or 'stopped'}", file=sys.stderr
            )
        if outcome.detail:
            print(outcome.detail, file=sys.stderr)
    if any(outcome.state == "unfinished" for outcome in outcomes):
        print("sonde: stopped; the same command resumes where it was", file=sys.stderr)
        raise typer.Exit(130)
    if all(outcome.state == "failed" for outcome in outcomes):
        raise typer.Exit(1)
    return outcomes


def _say_stopping(running: int) -> None:
    print(
        f"sonde: {running} runs finish their epoch and save it; Ctrl-C again stops them at once",
        file=sys.stderr,
    )
