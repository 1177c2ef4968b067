"""Data sets on disk: found, fetched, checked and decoded.  NumPy only, no torch.

CIFAR-10 is found as the official pickles, the official archive, or Parquet files.

Krizhevsky (2009), "Learning multiple layers of features from tiny images".
"""

import hashlib
import http.client
import json
import os
import re
import shlex
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar

import filelock

from sonde.core.errors import SondeError
from sonde.store.files import ASIDE, Place, clear_errors, make_folder, place, set_aside, user_cache
from sonde.store.remote import Remote, stamp

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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


def read_or_make(folder: Path, load: Callable[[Path], _T | None], make: Callable[[Path], None]) -> _T | None:
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
        read_or_make(folder, _checksums, lambda aside: _copy(root, names, listed, aside))
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


ARCHIVE = Archive(
    name="cifar-10-python.tar.gz",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    size=170_498_071,
    md5="c58f30108f718f92721af3b95e74349a",
)
CLASSES = 10
SIDE = 32  # pixels
BATCHES_FOLDER = "cifar-10-batches-py"
TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_FILES = ("test_batch",)


class _Named(Protocol):
    @property
    def name(self) -> str: ...
    def __truediv__(self, key: str, /) -> Self: ...


_R = TypeVar("_R", bound=_Named)

FORMS = {
    "pickles": "the official pickles",
    "archive": "the official archive",
    "parquet": "Parquet files of encoded images",
}


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """The form in which the data set was found, and its files."""

    form: Literal["pickles", "archive", "parquet"]
    place: Path
    train: tuple[Path, ...]
    test: tuple[Path, ...]
    archive: Archive = ARCHIVE

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that the images are read from, each once."""
        return tuple(dict.fromkeys((*self.train, *self.test)))


@dataclass(frozen=True, kw_only=True)
class ImageBlock:
    """Some decoded images with their labels, N×C×H×W and N; readers of all forms yield these."""

    image_NCHW: "NDArray[np.uint8]"
    label_N: "NDArray[np.uint8]"


class Absent(SondeError):
    """The data set is in none of the three forms."""


def find_or_mirror_cifar10(root: Place, archive: Archive = ARCHIVE) -> ImageSource:
    """Find the first of pickles, archive and Parquet files; a form with missing files is an error.

    Files below a URL are first copied into the cache.
    """
    if isinstance(root, Remote):
        listed = root.walk()
        names = chosen(root.name, listed, archive)
        if not names:
            raise Absent(
                f"CIFAR-10 is not below {root}: put {archive.name} there, or name another place with --data-root or "
                "SONDE_DATA"
            )
        root = mirror_remote(root, names, listed)
    assert isinstance(root, Path)
    try:
        return _find(root, archive)
    except OSError as error:
        raise SondeError(
            f"cannot look for CIFAR-10 in {root} ({error.strerror or error}): change its permissions, or name another "
            "folder with --data-root or SONDE_DATA"
        ) from error


def _find(root: Path, archive: Archive) -> ImageSource:
    for folder in _pickle_places(root):
        if folder.is_dir():
            return _pickles(folder)
    for file in _archive_places(root, archive):
        if file.is_file():
            check_size(file, archive)
            return ImageSource(form="archive", place=file, train=(file,), test=(file,), archive=archive)
    for folder in _parquet_places(root):
        train, test = (tuple(sorted(folder.glob(f"{split}*.parquet"))) for split in ("train", "test"))
        if train or test:
            return _parquet(folder, train, test)
    raise Absent(_absent(root, archive))


def chosen(root: str, names: Iterable[str], archive: Archive = ARCHIVE) -> list[str]:
    """Of the files below a root with this name, those of the form that `find_or_mirror_cifar10` takes."""
    anchor = PurePosixPath(root)
    below = {anchor / name: name for name in names}
    kept = (
        [(place, (*TRAIN_FILES, *TEST_FILES)) for place in _pickle_places(anchor)]
        + [(place.parent, (place.name,)) for place in _archive_places(anchor, archive)]
        + [(place, ("train*.parquet", "test*.parquet")) for place in _parquet_places(anchor)]
    )
    for folder, patterns in kept:
        found = [name for path, name in below.items() if path.parent == folder and _like(path.name, patterns)]
        if found:
            return sorted(found)
    return []


def _like(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def looked_for(root: _R, archive: Archive = ARCHIVE) -> list[_R]:
    """Every place `find_or_mirror_cifar10` looks at, in its order; the last ones are patterns."""
    parquet = [place / "{train,test}*.parquet" for place in _parquet_places(root)]
    return [*_pickle_places(root), *_archive_places(root, archive), *parquet]


def _pickle_places(root: _R) -> list[_R]:
    inside = [root] if root.name == BATCHES_FOLDER else []
    return [root / BATCHES_FOLDER, root / "cifar10" / BATCHES_FOLDER, *inside]


def _archive_places(root: _R, archive: Archive) -> list[_R]:
    return [root / archive.name, root / "cifar10" / archive.name]


def _parquet_places(root: _R) -> list[_R]:
    # The folder named after the data set first: train*.parquet in the root itself might be another set's.
    return [base / sub for base in (root / "cifar10", root) for sub in ("", "plain_text", "data")]


def _pickles(place: Path) -> ImageSource:
    missing = [name for name in (*TRAIN_FILES, *TEST_FILES) if not (place / name).is_file()]
    if missing:
        raise SondeError(
            f"{place} lacks {', '.join(missing)}: unpack the archive again, or remove the folder and use "
            "`sonde data fetch cifar10`"
        )
    train, test = (tuple(place / name for name in names) for names in (TRAIN_FILES, TEST_FILES))
    return ImageSource(form="pickles", place=place, train=train, test=test)


def _parquet(place: Path, train: tuple[Path, ...], test: tuple[Path, ...]) -> ImageSource:
    for split, files in (("train", train), ("test", test)):
        if not files:
            raise SondeError(f"{place} has no {split}*.parquet beside the other split: copy it there too")
        shards = [re.search(r"-(\d+)-of-(\d+)\.parquet$", file.name) for file in files]
        known = [(int(shard[1]), int(shard[2])) for shard in shards if shard]
        if known and (len(known) < len(files) or {i for i, _ in known} != set(range(known[0][1]))):
            raise SondeError(
                f"{place} should hold the {known[0][1]} files {split}-…-of-{known[0][1]:05d}.parquet and no other "
                f"{split}*.parquet, but holds {', '.join(file.name for file in files)}: copy the set again"
            )
    return ImageSource(form="parquet", place=place, train=train, test=test)


def _absent(root: Path, archive: Archive) -> str:
    looked = ", ".join(str(place) for place in looked_for(root, archive))
    option = "" if root == cache_folder() else f" --data-root {shlex.quote(str(root))}"
    return (
        f"CIFAR-10 is missing: download it with `sonde data fetch cifar10{option}` ({archive.size / 1e6:.0f} MB), or "
        f"name the folder that has it with --data-root or SONDE_DATA (looked for {looked})"
    )


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set that is fetched once: its archive, the function that finds it, and the places it looks at."""

    archive: Archive
    find: Callable[[Place], ImageSource]
    looked_for: Callable[[Place], list[Place]]


DATASETS = {
    "cifar10": Dataset(archive=ARCHIVE, find=find_or_mirror_cifar10, looked_for=looked_for),
}
