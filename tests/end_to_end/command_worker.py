"""A command of Sonde's in a process forked from one that has imported everything: it starts at once."""

import atexit
import os
import sys
from pathlib import Path

from sonde.cli import main

PRELOADED = [
    "command_worker",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_pdf",
    "sonde.analysis.audit",
    "sonde.engine.worker",
    "sonde.analysis.diagnosis",
    "sonde.show.figures.render",
    "sonde.show.exporters",
    "sonde.show.report.page",
    "sonde.store.verify",
    "torch._dynamo",
]


def give(words: list[str], place: Path, surroundings: dict[str, str], said: Path) -> None:
    """The command, in a session of its own; what it says on its standard error is in the file."""
    os.setsid()
    os.chdir(place)
    os.environ.update(surroundings)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.argv = ["sonde", *words]
    try:
        main()
    finally:
        atexit._run_exitfuncs()  # which a forked process leaves out
