"""A command of Sonde's in a process forked from one that has imported everything: it starts at once."""

import atexit
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from sonde.cli import main
from sonde.store import datasets
from sonde.store.datasets import Archive, find_or_mirror_cifar10, looked_for

ARCHIVE = "TESTED_ARCHIVE"
"""In the environment: the archive that `sonde data fetch` fetches in place of the one of the network."""

PRELOADED = [
    "command_worker",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_pdf",
    "sonde.analysis.audit",
    "sonde.engine.bundles",
    "sonde.analysis.diagnosis",
    "sonde.show.figures.render",
    "sonde.show.exporters",
    "sonde.show.report",
    "sonde.store.load",
    "torch._dynamo",
]


def give(words: list[str], place: Path, surroundings: dict[str, str], said: Path) -> None:
    """The command, in a session of its own; what it says on its standard error is in the file."""
    os.setsid()
    os.chdir(place)
    os.environ.update(surroundings)
    _fetch_from(**json.loads(surroundings[ARCHIVE]))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.argv = ["sonde", *words]
    try:
        main()
    finally:
        atexit._run_exitfuncs()  # which a forked process leaves out


def _fetch_from(**known: Any) -> None:
    archive = Archive(**known)
    find, places = partial(find_or_mirror_cifar10, archive=archive), partial(looked_for, archive=archive)
    datasets.DATASETS["cifar10"] = datasets.Dataset(archive=archive, find=find, looked_for=places)
