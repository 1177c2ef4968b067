"""What killed processes left in runs that have ended: states older than the last, and what was not in place yet."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sonde.core.errors import SondeError
from sonde.store.folder import RunFolder, is_left_over
from sonde.store.lock import hold
from sonde.store.place import Place
from sonde.store.remote import Remote
from sonde.store.schemas import Manifest


def sweep_ended(root: Place, ended: Mapping[str, Manifest]) -> None:
    """Remove it, unless somebody holds the run or the store may not be written to."""
    names = _names(root, ended)
    for id, manifest in ended.items():
        if any(is_left_over(name, manifest) for name in names.get(id, ())):
            folder = RunFolder(root / id)
            with suppress(SondeError), hold(root, id):
                folder.sweep(folder.manifest())


def _names(root: Place, runs: Mapping[str, Manifest]) -> dict[str, list[str]]:
    """The files of each run."""
    found: dict[str, list[str]] = {}
    if isinstance(root, Remote):
        for name in root.walk() if runs else ():
            run, _, file = name.partition("/")
            found.setdefault(run, []).append(file)
        return found
    assert isinstance(root, Path)
    for run in runs:
        with suppress(OSError):
            found[run] = os.listdir(root / run)
    return found
