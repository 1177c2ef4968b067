"""Data sets from the network: a published archive is downloaded once, files of an object store are copied once.

An archive is recognised by its size and checksum.  A download can be resumed and gets its name when it is complete.
"""

import hashlib
import http.client
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import filelock

from sonde.core.atomic import ASIDE, set_aside, user_cache
from sonde.core.errors import SondeError
from sonde.store.files import Place, clear_errors, make_folder, place
from sonde.store.remote import Remote, stamp

_CHUNK = 1 << 18  # bytes read at a time
SILENCE_TIMEOUT = 30  # seconds without a byte

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Archive:
    """The URL, size and checksum of a data set's published archive."""

    name: str
    url: str
    size: int  # bytes
    md5: str


def check_size(path: Path, archive: Archive) -> None:
    """Refuse a file that cannot be the archive, without reading it."""
    size = path.stat().st_size
    if size != archive.size:
        raise SondeError(
            f"{path} has {size:,} bytes, the published archive {archive.size:,}: remove it and fetch it again"
        )


def verify_archive(path: Path, archive: Archive) -> None:
    """Refuse a file whose content is not the archive's."""
    check_size(path, archive)
    found = _md5(path)
    if found != archive.md5:
        raise SondeError(
            f"{path} has the checksum {found}, the published archive {archive.md5}: remove it and fetch it again"
        )


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def fetch_archive(
    archive: Archive,
    root: Path,
    *,
    url: str | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> Path:
    """Return the verified archive below `root`; download it unless it is there.

    Bytes are written to a temporary file; after an interruption the next call continues it.  Several processes may
    fetch at once: one downloads, the others wait.
    """
    target = make_folder(root) / archive.name
    part = target.with_name(ASIDE + archive.name)
    with clear_errors(root):
        lock = filelock.FileLock(target.with_name(f".{archive.name}.lock"))
        lock.acquire()
    try:
        if target.exists():
            verify_archive(target, archive)
            return target
        _Download(archive, url or archive.url, target, part, on_progress).run()
        with clear_errors(target):
            found = _md5(part)
            if found != archive.md5:
                part.unlink()
                raise SondeError(
                    f"{url or archive.url} sent a file with the checksum {found}, not {archive.md5}, which was "
                    f"removed: try again later, or put the archive at {target} by hand"
                )
            part.replace(target)
        return target
    finally:
        lock.release()


class _Download:
    """Downloads one URL into one file, starting where the last attempt ended."""

    def __init__(self, archive: Archive, url: str, target: Path, part: Path, on_progress: OnProgress) -> None:
        self.archive, self.url, self.target, self.part = archive, url, target, part
        self.on_progress = on_progress
        self.done = part.stat().st_size if part.exists() else 0

    def run(self) -> None:
        if self.done > self.archive.size:
            self.done = 0
        if self.done == self.archive.size:
            return
        with self._network(), self._ask() as response:
            self._receive(response)
        if self.done < self.archive.size:
            raise self._failed("the connection ended early")

    def _ask(self) -> http.client.HTTPResponse:
        headers = {"User-Agent": "sonde"}
        if self.done:
            headers["Range"] = f"bytes={self.done}-"
        request = urllib.request.Request(self.url, headers=headers)
        try:
            response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=SILENCE_TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not self.done:
                raise
            error.close()
            self.done = 0
            return self._ask()
        return response

    def _receive(self, response: http.client.HTTPResponse) -> None:
        begins = response.headers.get("Content-Range", "").startswith(f"bytes {self.done}-")
        if response.status != http.HTTPStatus.PARTIAL_CONTENT or not begins:
            self.done = 0  # the server ignored the range: from the beginning
        length = response.headers.get("Content-Length")
        if length and length.isdigit() and self.done + int(length) != self.archive.size:
            raise SondeError(
                f"{self.url} offers {self.done + int(length):,} bytes, not the {self.archive.size:,} of "
                f"{self.archive.name}: check the network (a log-in page?), or put the archive at {self.target} by hand"
            )
        with clear_errors(self.part), self.part.open("ab") as file:
            file.truncate(self.done)
            while self.done < self.archive.size:
                self.on_progress(self.done, self.archive.size)
                with self._network():
                    chunk = response.read(min(_CHUNK, self.archive.size - self.done))
                if not chunk:
                    break
                file.write(chunk)
                self.done += len(chunk)
            file.flush()
            os.fsync(file.fileno())
        self.on_progress(self.done, self.archive.size)

    @contextmanager
    def _network(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception | str) -> SondeError:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return SondeError(
            f"cannot download {self.url} ({reason}); {self.done / 1e6:.1f} of {self.archive.size / 1e6:.1f} MB are "
            f"there: give the same command to resume, or put the archive at {self.target} by hand"
        )


_T = TypeVar("_T")

CHECKSUMS = "checksums.json"


def cache_folder() -> Path:
    """`SONDE_CACHE`, else the user's cache folder."""
    named = os.environ.get("SONDE_CACHE")
    return Path(named).expanduser() if named else user_cache()


def data_folder(given: Place | None = None) -> Place:
    """The root below which data sets are looked for: as given, else `SONDE_DATA`, else the cache folder."""
    named = place(given or os.environ.get("SONDE_DATA") or cache_folder())
    return named.expanduser() if isinstance(named, Path) else named


def made_once(folder: Path, load: Callable[[Path], _T | None], make: Callable[[Path], None]) -> _T | None:
    """Return what `load` reads from a cache folder; if that is None, let `make` fill the folder first.

    Several processes may call this at once: one makes the folder, the others wait.  The folder gets its name when it
    is complete.
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


def mirror_remote(root: Remote, names: Sequence[str], listed: dict[str, dict[str, Any]]) -> Path:
    """Copy these files of an object store into the cache, verify them, and return the local copy of `root`.

    The cache key covers the URL and each file's stamp, so a file that changes in the store is copied again.
    """
    known = [(name, stamp(listed[name])) for name in names]
    key = hashlib.sha256(json.dumps([str(root), known]).encode()).hexdigest()[:16]
    folder = cache_folder() / "copied" / key
    with clear_errors(folder):
        made_once(folder, _checksums, lambda aside: _copy(root, names, listed, aside))
    return folder / root.name


def _checksums(folder: Path) -> dict[str, Any] | None:
    """The checksums of a complete copy, else None."""
    try:
        known: dict[str, Any] = json.loads((folder / CHECKSUMS).read_text("utf-8"))
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
    """Read a file and compare size and MD5 with what the store lists; without an MD5, read it twice and compare.

    The ETag of S3 is the MD5, unless the object was uploaded in parts or encrypted with its own key.
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
