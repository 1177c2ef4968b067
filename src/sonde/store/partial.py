"""An export under way: a file beside it says that it is not complete, until it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sonde.core.atomic import remove_stale
from sonde.core.errors import SondeError
from sonde.store import files
from sonde.store.place import Place

STORE = "runs"  # the layout that commands read as a store


def mark_of(out: Place, layout: str) -> Place:
    """The file that is there as long as an export is not complete."""
    return out / f"INCOMPLETE-{layout}.txt"


def why_incomplete(root: Place) -> str | None:
    """That a store is an export that was interrupted, or None.  Exports are written to folders of this machine."""
    try:
        interrupted = isinstance(root, Path) and mark_of(root, STORE).exists()
    except OSError:
        return None
    return (
        f"{root} is an export that was interrupted, and lacks runs: give the same `sonde export` again to complete it"
        if interrupted
        else None
    )


@contextmanager
def marked(out: Path, layout: str, *, alone: bool = False, run_by_run: bool = False) -> Iterator[None]:
    """Mark the folder while an export is written.  After an interruption the mark stays, and the same command goes on.

    `alone`: the export needs a folder that holds nothing else.  `run_by_run`: an error leaves the runs before it;
    other layouts appear complete or not at all, and an error leaves no mark of theirs.
    """
    mark = mark_of(out, layout)
    files.make_folder(out)
    with files.clear_errors(out):
        remove_stale(out)
        if alone and not mark.exists() and any(out.iterdir()):
            raise SondeError(f"{out} is not empty: --layout {layout} needs a folder of its own, choose another --out")
    files.write(
        mark,
        f"An export ({layout}) is being written here, or was interrupted: this folder does not hold all of it.\n"
        "The same `sonde export` command completes it and removes this file.\n".encode(),
    )
    try:
        yield
    except Exception:
        if not run_by_run or all(path == mark for path in out.iterdir()):
            mark.unlink(missing_ok=True)
        raise
    with files.clear_errors(mark):
        mark.unlink(missing_ok=True)
