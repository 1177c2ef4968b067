"""Exports: a copy of a store to hand round, and a mark on folders whose export is not complete.

The copy has rows and configurations, without weights and without the names of machines.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sonde.core.atomic import remove_stale
from sonde.core.errors import SondeError
from sonde.store import files
from sonde.store.files import Place
from sonde.store.folder import RunFolder, manifest_bytes
from sonde.store.listing import mark_of
from sonde.store.run import without_machine
from sonde.store.schemas import ENDED, WATCHED_KIND, checksum


def publish(root: Place, out: Place, runs: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Copy what can be read again by every command: the runs written, and those left out with the reason.

    Checksums are those of the copies, so `sonde verify` vouches for what was handed round.
    """
    written, left_out = [], {}
    for id in runs:
        folder = RunFolder(root / id)
        files.refuse_link(folder.path)
        manifest = folder.manifest()
        described = folder.description(manifest)
        if described.get("kind") == WATCHED_KIND:
            left_out[id] = "it was watched, and its rows are not those of a trained run"
        elif manifest.state not in ENDED:
            left_out[id] = "it has not come to its end"
        else:
            contents = {
                name: folder.content(name, manifest, follow=False)
                for name in ("run.json", *described.get("guests", []), manifest.files["metrics"])
            }
            kept = replace(
                without_machine(manifest),
                files={"metrics": manifest.files["metrics"]},
                checksums={name: checksum(content) for name, content in contents.items()},
            )
            manifest_of_copy = manifest_bytes(kept)
            if not _is_there(out / id, manifest_of_copy):
                files.write_folder(out / id, {**contents, "manifest.json": manifest_of_copy})
            written.append(id)
    return written, left_out


def _is_there(copy: Place, manifest: bytes) -> bool:
    """Whether an export that was interrupted wrote the same copy: a folder appears with all its files."""
    try:
        return (copy / "manifest.json").read_bytes() == manifest
    except OSError:
        return False


# ── incomplete exports ───────────────────────────────────────────────────────────────────────────────
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
