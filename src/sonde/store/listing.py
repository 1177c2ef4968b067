"""Which runs lie in a store, without reading them; what killed processes left in them; notices to the user."""

import difflib
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from sonde.core.errors import SondeError, nearest, print_notice
from sonde.core.formatting import listed
from sonde.store import files
from sonde.store.files import Place, place
from sonde.store.folder import RunFolder, is_left_over
from sonde.store.lock import hold
from sonde.store.remote import Remote, stamp
from sonde.store.schemas import Manifest

_STAMPED = ("manifest.json", "run.json", "metrics.parquet")
_BEGINNING = b'{\n "format": '  # how each of the first two begins


def present_runs(root: Place) -> list[str]:
    """The ids of the runs that are in the store."""
    return list(stamps(root) or {})


def find_run(root: str | Place, name: str) -> str:
    """The id of the one run of a store that has this name, or whose id begins or ends so."""
    root = place(root)
    ids = list(stamps_of(root))
    chosen = [id for id in ids if id == name] or [id for id in ids if id.startswith(name)]
    chosen = chosen or [id for id in ids if id.endswith(f"-{name}")]
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        raise SondeError(f"{len(chosen)} runs in {root} begin with {name!r}: {listed(chosen, 3)}; give more of the id")
    if not ids:
        raise SondeError(f"{root} holds no runs: `sonde run STUDY --runs {root}` makes them")
    close = nearest(name, ids) if len(ids) <= 8 or difflib.get_close_matches(name, ids, 1, 0.5) else None
    raise SondeError(f"no run in {root} begins with {name!r}: {close or f'`sonde show` lists the {len(ids)}'}")


def stamps_of(root: Place) -> dict[str, str]:
    """What lies in a store, which has to be there."""
    with files.clear_errors(root):
        if isinstance(root, Path) and root.exists() and not root.is_dir():
            raise SondeError(f"{root} is a file: --runs names a folder of runs")
        present = stamps(root)
    if present is None:
        raise SondeError(f"{root} does not exist: `sonde run STUDY --runs {root}` makes it")
    return present


def stamps(root: Place) -> dict[str, str] | None:
    """Every run of a store with the stamps of its files, in order of their ids; None where there is no store.

    Any other folder is no run.  Sonde writes no name with a line break in it.
    """
    if isinstance(root, Remote):
        return _remote_stamps(root)
    if not root.exists():
        return None
    found = {}
    with os.scandir(str(root)) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.name.isprintable() and entry.is_dir():
                of_files = [_stamp(f"{entry.path}/{name}") for name in _STAMPED]
                described = of_files[0] and of_files[1]
                if described or any(_is_ours(f"{entry.path}/{name}") for name in _STAMPED[:2]):
                    found[entry.name] = "|".join(of_files)
    return dict(sorted(found.items()))


def foreign_folders(root: Place, present: Collection[str]) -> int:
    """How many folders of a store are not runs."""
    if isinstance(root, Remote):
        return 0
    with os.scandir(str(root)) as entries:
        return sum(entry.name not in present and not entry.name.startswith(".") and entry.is_dir() for entry in entries)


def mark_of(out: Place, layout: str) -> Place:
    """The file that is there as long as an export is not complete."""
    return out / f"INCOMPLETE-{layout}.txt"


def why_incomplete(root: Place) -> str | None:
    """That a store is an export that was interrupted, or None.  Exports are written to folders of this machine."""
    with suppress(OSError):
        if isinstance(root, Path) and mark_of(root, "runs").exists():
            again = "give the same `sonde export` again to complete it"
            return f"{root} is an export that was interrupted, and lacks runs: {again}"
    return None


def _is_ours(path: str) -> bool:
    """Whether a file of a run that lacks another begins as Sonde's do."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_BEGINNING)) == _BEGINNING
    except OSError:
        return False


def _stamp(path: str) -> str:
    try:
        known = os.stat(path)
    except OSError:
        return ""
    return f"{known.st_mtime_ns}-{known.st_size}"


def _remote_stamps(root: Remote) -> dict[str, str] | None:
    objects = root.walk()
    if not objects:
        return None
    found: dict[str, dict[str, str]] = {}
    for name, about in sorted(objects.items()):
        run, _, file = name.partition("/")
        if file in _STAMPED and not run.startswith(".") and run.isprintable():
            found.setdefault(run, {})[file] = stamp(about)
    return {
        run: "|".join(known.get(name, "") for name in _STAMPED)
        for run, known in found.items()
        if "manifest.json" in known
    }


# ── clean up ─────────────────────────────────────────────────────────────────────────────────────────
def clean_up_ended(root: Place, ended: Mapping[str, Manifest]) -> None:
    """Remove files of older states and unfinished writes from ended runs.

    Runs that a process holds, and stores that may not be written to, are left alone.
    """
    names = _names(root, ended)
    for id, manifest in ended.items():
        if any(is_left_over(name, manifest) for name in names.get(id, ())):
            folder = RunFolder(root / id)
            with suppress(SondeError), hold(root, id):
                folder.clean_up(folder.manifest())


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


# ── notices ──────────────────────────────────────────────────────────────────────────────────────────
_told: set[str] = set()


def tell(text: str) -> None:
    """Print a line on standard error, once in a process."""
    if text not in _told:
        _told.add(text)
        print_notice(text)
