"""The official batches: pickles of N×3072 pixels and N labels, in a folder or in the archive.

A pickle can run code: what is read here are arrays and plain containers, and every other pickle is refused.

N samples, C channels, H height, W width.
"""

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sonde.core.errors import SondeError
from sonde.store.datasets.archive import verify
from sonde.store.datasets.cifar10 import CLASSES, FOLDER, SIDE, TEST, TRAIN, ImageBlock, Source

BATCH_IMAGES = 10_000  # in a published batch
NUMPY_RECONSTRUCT = np.empty(0).__reduce__()[0]  # NumPy's own, wherever this version keeps it


def from_folder(files: tuple[Path, ...]) -> Iterator[ImageBlock]:
    for file in files:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise SondeError(f"cannot read {file}: {error.strerror or error}") from error
        yield parse(content, file)


def from_archive(source: Source) -> Callable[[tuple[str, ...]], Iterator[ImageBlock]]:
    """A reader of the archive's batches, once its checksum is right; nothing is unpacked to disk.

    The members are held in memory (180 MB), since they lie in the archive in an order of their own.
    """
    verify(source.place, source.archive)
    wanted = {f"{FOLDER}/{name}" for name in (*TRAIN, *TEST)}
    members: dict[str, bytes] = {}
    try:
        with tarfile.open(source.place, "r:gz") as tar:
            for member in tar:
                if member.isreg() and member.name in wanted:
                    file = tar.extractfile(member)
                    members[member.name] = b"" if file is None else file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise SondeError(f"{source.place} cannot be read ({error}): remove it and fetch it again") from error
    missing = sorted(wanted - members.keys())
    if missing:
        raise SondeError(f"{source.place} lacks {', '.join(missing)}: remove it and fetch it again")

    def read(names: tuple[str, ...]) -> Iterator[ImageBlock]:
        for name in names:
            member = f"{FOLDER}/{name}"
            yield parse(members.pop(member), f"{source.place}/{member}")

    return read


def parse(content: bytes, name: Path | str) -> ImageBlock:
    """One batch, its shape and labels checked."""
    batch = load_arrays(content, name)
    if not isinstance(batch, dict):
        raise SondeError(f"{name} holds a {type(batch).__name__}, not a batch of images: fetch it again")
    pixels = _entry(batch, "data", name)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3 * SIDE * SIDE,):
        found = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise SondeError(f"{name}: data is {found}, not uint8 (N, {3 * SIDE * SIDE}): fetch it again")
    labels = _labels(_entry(batch, "labels", name), len(pixels), name)
    return ImageBlock(image_NCHW=pixels.reshape(-1, 3, SIDE, SIDE), label_N=labels)


def _entry(batch: dict[Any, Any], key: str, name: Path | str) -> Any:
    for spelling in (key.encode(), key):
        if spelling in batch:
            return batch[spelling]
    raise SondeError(f"{name} has no {key}: it is not a batch of CIFAR-10")


def _labels(labels: Any, images: int, name: Path | str) -> NDArray[np.uint8]:
    try:
        label_N = np.asarray(labels)
    except ValueError:
        label_N = np.asarray(None)
    if label_N.ndim != 1 or (len(label_N) and label_N.dtype.kind not in "iu"):
        raise SondeError(f"{name}: labels are not a list of integers: fetch it again")
    if len(label_N) != images:
        raise SondeError(f"{name} has {len(label_N):,} labels for {images:,} images: fetch it again")
    wrong = np.flatnonzero((label_N < 0) | (label_N >= CLASSES))
    if len(wrong):
        raise SondeError(f"{name}, row {wrong[0]}: label {label_N[wrong[0]]} is not in 0..{CLASSES - 1}")
    return label_N.astype(np.uint8)


def load_arrays(content: bytes, name: Path | str) -> Any:
    """What the pickle holds, strings of Python 2 as bytes; nothing it names is imported or run.

    The only globals admitted are the four by which NumPy and Python 3 write arrays and bytes.
    """
    try:
        return _Arrays(content, name).load()
    except SondeError:
        raise
    except Exception as error:  # a broken pickle can raise anything
        raise SondeError(
            f"{name} cannot be read, it is cut short or damaged ({type(error).__name__}: {error}): fetch it again"
        ) from error


class _Arrays(pickle.Unpickler):
    def __init__(self, content: bytes, name: Path | str) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._name = name

        # Made anew for each file, since a pickle can set attributes of a function it is given.
        def dtype(description: Any, align: Any = False, copy: Any = False) -> Any:
            return np.dtype(description, align=bool(align), copy=bool(copy))  # old files hold 0 and 1

        def encode(text: str, encoding: str) -> bytes:
            if encoding not in ("latin1", b"latin1"):
                raise self._refused("_codecs", f"encode to {encoding}")
            return text.encode("latin1")

        self._admitted = {
            ("numpy.core.multiarray", "_reconstruct"): NUMPY_RECONSTRUCT,
            ("numpy._core.multiarray", "_reconstruct"): NUMPY_RECONSTRUCT,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): dtype,
            ("_codecs", "encode"): encode,
        }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._admitted:
            raise self._refused(module, name)
        return self._admitted[module, name]

    def _refused(self, module: str, name: str) -> SondeError:
        return SondeError(
            f"{self._name} asks for {module}.{name}, which a file of images has no need of, and was not read: "
            "fetch the data set from its own site with `sonde data fetch cifar10`"
        )
