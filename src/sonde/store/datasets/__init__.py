"""Data sets on disk: found, fetched, checked and decoded.  NumPy only, no torch.

CIFAR-10 is found as the official pickles, the official archive, or Parquet files.

Krizhevsky (2009), "Learning multiple layers of features from tiny images".
"""

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeVar

from sonde.core.errors import SondeError
from sonde.store.datasets.archive import Archive, cache_folder, check_size, mirror_remote
from sonde.store.files import Place
from sonde.store.remote import Remote

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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


def find_cifar10(root: Place, archive: Archive = ARCHIVE) -> ImageSource:
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
    for place in _pickle_places(root):
        if place.is_dir():
            return _pickles(place)
    for place in _archive_places(root, archive):
        if place.is_file():
            check_size(place, archive)
            return ImageSource(form="archive", place=place, train=(place,), test=(place,), archive=archive)
    for place in _parquet_places(root):
        train, test = (tuple(sorted(place.glob(f"{split}*.parquet"))) for split in ("train", "test"))
        if train or test:
            return _parquet(place, train, test)
    raise Absent(_absent(root, archive))


def chosen(root: str, names: Iterable[str], archive: Archive = ARCHIVE) -> list[str]:
    """Of the files below a root with this name, those of the form that `find_cifar10` takes."""
    anchor = PurePosixPath(root)
    below = {anchor / name: name for name in names}
    kept = (
        [(place, (*TRAIN_FILES, *TEST_FILES)) for place in _pickle_places(anchor)]
        + [(place.parent, (place.name,)) for place in _archive_places(anchor, archive)]
        + [(place, ("train*.parquet", "test*.parquet")) for place in _parquet_places(anchor)]
    )
    for place, patterns in kept:
        found = [name for path, name in below.items() if path.parent == place and _like(path.name, patterns)]
        if found:
            return sorted(found)
    return []


def _like(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def looked_for(root: _R, archive: Archive = ARCHIVE) -> list[_R]:
    """Every place `find_cifar10` looks at, in its order; the last ones are patterns."""
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
    "cifar10": Dataset(archive=ARCHIVE, find=find_cifar10, looked_for=looked_for),
}
