"""A published archive: recognised by its size and checksum; downloaded resumably, in place only when it is whole."""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import filelock

from sonde.core.atomic import ASIDE
from sonde.core.errors import SondeError
from sonde.store.files import clear_errors, make_folder

CHUNK = 1 << 18  # bytes read at a time
SILENCE_TIMEOUT = 30  # seconds without a byte

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Archive:
    """Where a data set's own site keeps it, and what arrives when nothing goes wrong."""

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


def verify(path: Path, archive: Archive) -> None:
    """Refuse a file whose content is not the archive's."""
    check_size(path, archive)
    found = md5(path)
    if found != archive.md5:
        raise SondeError(
            f"{path} has the checksum {found}, the published archive {archive.md5}: remove it and fetch it again"
        )


def md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def fetch(
    archive: Archive,
    root: Path,
    *,
    url: str | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> Path:
    """The verified archive below `root`; what is there already is not downloaded again.

    Bytes arrive in a file aside, which an interrupted download leaves for the next one to continue.  Several
    processes may fetch at once: one downloads, the others wait for it.
    """
    target = make_folder(root) / archive.name
    part = target.with_name(ASIDE + archive.name)
    with clear_errors(root):
        lock = filelock.FileLock(target.with_name(f".{archive.name}.lock"))
        lock.acquire()
    try:
        if target.exists():
            verify(target, archive)
            return target
        _Download(archive, url or archive.url, target, part, on_progress).run()
        with clear_errors(target):
            found = md5(part)
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
    """Bytes of one URL into one file, from where the last attempt ended."""

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
                    chunk = response.read(min(CHUNK, self.archive.size - self.done))
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
