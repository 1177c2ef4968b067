"""A store as a folder of runs: which runs it has, without reading them; cleaning up, removing and copying them."""

import difflib
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from sonde.core.errors import SondeError, nearest
from sonde.core.formatting import listed
from sonde.store import files
from sonde.store.files import ASIDE, Place, aside_mark, place, remove_stale, sync_folder
from sonde.store.folder import clean_up, is_left_over, manifest_bytes, read_content, read_manifest
from sonde.store.lock import Held, hold, run_status
from sonde.store.remote import Remote, stamp
from sonde.store.run import open_run, without_machine
from sonde.store.schemas import ENDED, Manifest, checksum

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
    every = f"`sonde show --runs {root}` lists all {len(ids)}"
    close = nearest(name, ids) if len(ids) <= 8 or difflib.get_close_matches(name, ids, 1, 0.5) else None
    raise SondeError(f"no run in {root} begins with {name!r}: {close or every}")


def stamps_of(root: Place) -> dict[str, str]:
    """The same; raise where there is no store."""
    with files.clear_errors(root):
        if isinstance(root, Path) and root.exists() and not root.is_dir():
            raise SondeError(f"{root} is a file: --runs names a folder of runs")
        present = stamps(root)
    if present is None:
        raise SondeError(
            f"{root} does not exist: `sonde run STUDY --runs {root}` or sonde.watch(model, optimizer, "
            f"runs={str(root)!r}) creates it"
        )
    return present


def stamps(root: Place) -> dict[str, str] | None:
    """Every run of a store with the stamps of its files, sorted by id; None where there is no store.

    Folders without a file of Sonde's, and names with a line break, are left out.
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
            with suppress(SondeError), hold(root, id):
                clean_up(root / id, read_manifest(root / id))


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


# ── trash ───────────────────────────────────────────────────────────────────────────────────────────
# `.trash` inside a store keeps removed runs until it is emptied.  Readers skip folders that begin with a dot.
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
    trash = files.make_inner_folder(root / TRASH_FOLDER)
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
        return run_status(path, read_manifest(path)).state in ("running", "stalled")
    except SondeError:
        return False


def trashed(root: Path) -> list[str]:
    """The names of what is in the trash."""
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
        if read_manifest(path).epoch is not None:
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


# ── copies ──────────────────────────────────────────────────────────────────────────────────────────
# A copy to hand round has rows and configurations, without weights and without the names of machines.
def publish(root: Place, out: Place, runs: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Copy ended runs, which every command can read.  Return the runs written, and those left out with the reason.

    Checksums are those of the copies, so `sonde verify` vouches for what was handed round.
    """
    written, left_out = [], {}
    for id in runs:
        path = root / id
        files.refuse_link(path)
        run = open_run(path)
        manifest = run.manifest
        if run.is_watched:
            left_out[id] = "it was watched, and its rows are not those of a trained run"
        elif manifest.state not in ENDED:
            left_out[id] = "it has not come to its end"
        else:
            contents = {
                name: read_content(path / name, manifest, follow=False)
                for name in ("run.json", *run.description.get("guests", []), manifest.files["metrics"])
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
