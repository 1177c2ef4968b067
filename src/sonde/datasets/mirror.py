"""Files of an object store, copied once into the cache of this machine and used from there."""

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import filelock

from sonde.datasets.places import cache_folder
from sonde.errors import SondeError
from sonde.store.files import ASIDE, clear_errors, to_disk
from sonde.store.remote import Remote, stamp

CHECKSUMS = "checksums.json"


def mirror(root: Remote, names: Sequence[str], listed: dict[str, dict[str, Any]]) -> Path:
    """A folder with these files below `root`, verified, under the root's own name.

    It is named after the URL and what the store says of each file: one that changes there is copied anew.  Several
    processes may ask at once: one copies, the others wait for it.
    """
    known = [(name, stamp(listed[name])) for name in names]
    key = hashlib.sha256(json.dumps([str(root), known]).encode()).hexdigest()[:16]
    folder = cache_folder() / "copied" / key
    if not _whole(folder):
        with clear_errors(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(folder.with_name(f"{key}.lock")):
                if not _whole(folder):
                    _copy(root, names, listed, folder)
    return folder / root.name


def _whole(folder: Path) -> bool:
    try:
        known = json.loads((folder / CHECKSUMS).read_text())
        return all((folder / name).stat().st_size == about["size"] for name, about in known.items())
    except (OSError, ValueError):
        return False


def _copy(root: Remote, names: Sequence[str], listed: dict[str, dict[str, Any]], folder: Path) -> None:
    """Write the copy aside and rename it; the caller holds its lock."""
    aside = folder.with_name(ASIDE + folder.name)
    shutil.rmtree(aside, ignore_errors=True)  # left by a process that was killed
    try:
        checksums = {}
        for name in names:
            content = _verified(root / name, listed[name])
            local = f"{root.name}/{name}"
            checksums[local] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            (aside / local).parent.mkdir(parents=True, exist_ok=True)
            to_disk(aside / local, content)
        to_disk(aside / CHECKSUMS, json.dumps(checksums, indent=1).encode())
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


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
