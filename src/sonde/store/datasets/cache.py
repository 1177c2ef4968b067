"""What this machine keeps of data sets: where, decoded once or copied once, and used from there."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import filelock
import platformdirs

from sonde.core.atomic import set_aside
from sonde.core.errors import SondeError
from sonde.store.files import Place, clear_errors, place
from sonde.store.remote import Remote, stamp

T = TypeVar("T")

CHECKSUMS = "checksums.json"


def cache_folder() -> Path:
    """`SONDE_CACHE`, else the user's cache folder."""
    named = os.environ.get("SONDE_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(platformdirs.user_cache_dir("sonde", appauthor=False))


def data_folder(given: Place | None = None) -> Place:
    """The root below which data sets are looked for: as given, else `SONDE_DATA`, else the cache folder."""
    named = place(given or os.environ.get("SONDE_DATA") or cache_folder())
    return named.expanduser() if isinstance(named, Path) else named


def made_once(folder: Path, load: Callable[[Path], T | None], make: Callable[[Path], None]) -> T | None:
    """What `load` finds in a folder of the cache; if that is nothing, once `make` has filled it.

    Several processes may ask at once: one makes it, the others wait.  It gets its name when it is whole.
    """
    found = load(folder)
    if found is None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder.with_name(f"{folder.name}.lock")):
            if load(folder) is None:
                with set_aside(folder, locked=True) as (aside,):
                    aside.mkdir()
                    make(aside)
        found = load(folder)
    return found


def mirror(root: Remote, names: Sequence[str], listed: dict[str, dict[str, Any]]) -> Path:
    """A folder with these files of an object store, verified, under the name of their `root`.

    It is named after the URL and what the store says of each file: one that changes there is copied anew.
    """
    known = [(name, stamp(listed[name])) for name in names]
    key = hashlib.sha256(json.dumps([str(root), known]).encode()).hexdigest()[:16]
    folder = cache_folder() / "copied" / key
    with clear_errors(folder):
        made_once(folder, _checksums, lambda aside: _copy(root, names, listed, aside))
    return folder / root.name


def _checksums(folder: Path) -> dict[str, Any] | None:
    """Of a copy that is whole."""
    try:
        known: dict[str, Any] = json.loads((folder / CHECKSUMS).read_text())
        whole = all((folder / name).stat().st_size == about["size"] for name, about in known.items())
    except (OSError, ValueError):
        return None
    return known if whole else None


def _copy(root: Remote, names: Sequence[str], listed: dict[str, dict[str, Any]], folder: Path) -> None:
    checksums = {}
    for name in names:
        content = _verified(root / name, listed[name])
        local = folder / root.name / name
        checksums[f"{root.name}/{name}"] = {
            "size": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        local.parent.mkdir(parents=True, exist_ok=True)
        local.write_bytes(content)
    (folder / CHECKSUMS).write_bytes(json.dumps(checksums, indent=1).encode())


def _verified(file: Remote, about: dict[str, Any]) -> bytes:
    """The content with the size and the MD5 the store tells, or, where it tells none, the same when read again.

    The ETag of S3 is the MD5 unless the object was put in parts or encrypted with a key of its own.
    """
    content = file.read_bytes()
    size, tag = about.get("size"), str(about.get("ETag", "")).strip('"')
    if size is not None and len(content) != size:
        raise SondeError(f"{file} has {len(content):,} bytes, but {size:,} are listed: try again")
    if re.fullmatch("[0-9a-f]{32}", tag) and hashlib.md5(content, usedforsecurity=False).hexdigest() == tag:
        return content
    if hashlib.sha256(file.read_bytes()).digest() != hashlib.sha256(content).digest():
        raise SondeError(f"{file} arrived with another content each time it was read: try again")
    return content
