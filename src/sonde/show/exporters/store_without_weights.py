"""A store of the same runs without weights, to hand round: every command reads it."""

from collections.abc import Callable
from pathlib import Path

from sonde.core.errors import SondeError
from sonde.store.listing import tell
from sonde.store.publish import publish
from sonde.store.run import Runs


def write(stored: Runs, out: Path, on_progress: Callable[[int, int], None]) -> list[Path]:
    """A folder for each run that has ended; the others are named."""
    runs = stored.every
    others = {path.name for path in out.iterdir() if path.is_dir()} - {run.id for run in runs}
    if others:
        raise SondeError(f"{out} holds {min(others)}, which is not in this export: choose another --out")
    paths = []
    for done, run in enumerate(runs):
        on_progress(done, len(runs))
        written, left_out = publish(run.path.parent, out, [run.id])
        paths += [out / id for id in written]
        for id, why in left_out.items():
            tell(f"left out: {id} ({why})")
    on_progress(len(runs), len(runs))
    if not paths:
        raise SondeError(f"nothing to write in {out}: no trained run has come to its end")
    return paths
