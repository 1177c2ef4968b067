"""Removed runs: `.trash` inside a store keeps them until it is emptied.  Readers skip folders that begin with a dot."""

import shutil
from pathlib import Path

from sonde.core.atomic import ASIDE, aside_mark, sync_folder
from sonde.core.errors import SondeError
from sonde.store import files
from sonde.store.files import Place
from sonde.store.folder import RunFolder
from sonde.store.lock import Held, hold, run_status
from sonde.store.remote import Remote

TRASH_FOLDER = ".trash"


def refuse_url(root: Place) -> None:
    """Raise where the store is an object store: its own tools remove runs."""
    if isinstance(root, Remote):
        raise SondeError(
            f"{root}: runs below a URL are removed with the tools of the object store, a prefix for each run"
        )


def move_to_trash(root: Path, id: str) -> Path:
    """Move a run that no process works on; return where it is now."""
    path = root / id
    files.refuse_link(path)
    trash = files.inner_folder(root / TRASH_FOLDER)
    if _is_at_work(path):
        raise Held(f"run {id} is in use: stop its process first")
    with hold(root, id):
        target = trash / id
        number = 1
        while target.exists() or target.is_symlink():
            number += 1
            target = trash / f"{id}.{number}"
        with files.clear_errors(path):
            path.rename(target)
            sync_folder(root)
            sync_folder(trash)
    return target


def _is_at_work(path: Path) -> bool:
    """Whether a process trains or watches the run; False where its manifest cannot be read."""
    try:
        return run_status(path, RunFolder(path).manifest()).state in ("running", "stalled")
    except SondeError:
        return False


def trashed(root: Path) -> list[str]:
    """What lies in the trash."""
    trash = root / TRASH_FOLDER
    files.refuse_link(trash)
    return sorted(path.name for path in trash.iterdir()) if trash.is_dir() else []


def empty_trash(root: Path) -> None:
    """Remove everything in the trash for good; links in it are removed, not followed."""
    for name in trashed(root):
        path = root / TRASH_FOLDER / name
        with files.clear_errors(path):
            if path.is_symlink() or not path.is_dir():
                path.unlink()
            else:
                shutil.rmtree(path)


def remove_without_epoch(root: Place, id: str) -> None:
    """Remove a run that stored no epoch, for good; one that another process holds is an error."""
    path = root / id
    with hold(root, id):
        if RunFolder(path).manifest().epoch is not None:
            return
        if isinstance(path, Path):
            files.refuse_link(path)
            aside = path.with_name(f"{ASIDE}{aside_mark()}{id}")
            with files.clear_errors(path):
                path.rename(aside)
                shutil.rmtree(aside)
            return
        (path / "manifest.json").unlink()  # without it there is no run
        for file in path.iterdir():
            file.unlink(missing_ok=True)
