"""CIFAR-10 decoded once into flat uint8 files, which every run maps into memory; and the readers of its forms.

The official batches are pickles of N×3072 pixels and N labels, in a folder or in the archive.  A pickle can run code:
the reader admits arrays and plain containers, and refuses every other pickle.
Parquet files have a PNG or JPEG in every row: columns `img: struct<bytes, path>` and `label`.

N samples, C channels, H height, W width.
"""

import hashlib
import io
import json
import os
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image

from sonde.core.errors import SondeError
from sonde.store.datasets import (
    BATCHES_FOLDER,
    CLASSES,
    SIDE,
    TEST_FILES,
    TRAIN_FILES,
    ImageBlock,
    ImageSource,
    OnProgress,
    cache_folder,
    read_or_make,
    verify_archive,
)
from sonde.store.parquet import parquet_size

PAD = 4  # black pixels on every side of a training image, so that a random crop is a plain window
_CACHE_LAYOUT = 1  # of the files; raise it when they change


@dataclass(frozen=True, kw_only=True)
class Images:
    """The data set as memory-mapped arrays; `train_NCHW` is padded.

    `fingerprint` is the checksum of all pixels and labels; it does not depend on the form they were read from.
    """

    train_NCHW: NDArray[np.uint8]
    train_label_N: NDArray[np.uint8]
    test_NCHW: NDArray[np.uint8]
    test_label_N: NDArray[np.uint8]
    form: str
    fingerprint: str


def open_images(source: ImageSource, on_progress: OnProgress = lambda done, total: None) -> Images:
    """Return the decoded images of a source; decode them into the cache unless they are there.

    Several processes may call this at once: one decodes, the others wait.
    """
    folder = cache_folder() / "decoded" / f"cifar10-{_key(source)}"
    with _writable(folder):
        images = read_or_make(folder, _load, lambda aside: _decode(source, aside, on_progress))
    if images is None:
        raise SondeError(f"{folder} was changed while it was written: remove it and try again")
    return images


def _key(source: ImageSource) -> str:
    """A cache key of the files: it changes if any of them is replaced or changed."""
    known = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in source.files]
    return hashlib.sha256(json.dumps([_CACHE_LAYOUT, source.form, known]).encode()).hexdigest()[:16]


def _load(folder: Path) -> Images | None:
    """The images of a complete cache folder, else None."""
    try:
        about = json.loads((folder / "about.json").read_text("utf-8"))
        train, test, padded = int(about["train"]), int(about["test"]), SIDE + 2 * PAD
        return Images(
            train_NCHW=_map(folder / "train.u8", (train, 3, padded, padded)),
            train_label_N=_map(folder / "train_labels.u8", (train,)),
            test_NCHW=_map(folder / "test.u8", (test, 3, SIDE, SIDE)),
            test_label_N=_map(folder / "test_labels.u8", (test,)),
            form=str(about["form"]),
            fingerprint=str(about["fingerprint"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _map(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Copy-on-write: torch wants writable memory, and nothing written there reaches the file."""
    if path.stat().st_size != np.prod(shape):
        raise ValueError(path)
    return np.memmap(path, np.uint8, "c", shape=shape)


def _decode(source: ImageSource, folder: Path, on_progress: OnProgress) -> None:
    total, train, test = _blocks(source)
    counter = _Counter(total, on_progress)
    splits = {
        "train": _write(folder, "train", train, PAD, counter),
        "test": _write(folder, "test", test, 0, counter),
    }
    about = {
        **{split: written.samples for split, written in splits.items()},
        "form": source.form,
        "place": str(source.place.resolve()),
        "fingerprint": hashlib.sha256("".join(s.digest for s in splits.values()).encode()).hexdigest(),
    }
    (folder / "about.json").write_bytes(json.dumps(about, indent=1).encode())


def _blocks(source: ImageSource) -> tuple[int, Iterator[ImageBlock], Iterator[ImageBlock]]:
    """How many images to expect, and the two splits block by block."""
    if source.form == "parquet":

        def read(files: tuple[Path, ...]) -> Iterator[ImageBlock]:
            return (block for file in files for block in read_images(file))

        return sum(count_images(file) for file in source.files), read(source.train), read(source.test)
    total = _BATCH_IMAGES * len((*TRAIN_FILES, *TEST_FILES))
    if source.form == "archive":
        reader = read_archive(source)
        return total, reader(TRAIN_FILES), reader(TEST_FILES)
    return total, _read_folder(source.train), _read_folder(source.test)


@dataclass(frozen=True)
class _Written:
    samples: int
    digest: str


def _write(folder: Path, split: str, blocks: Iterator[ImageBlock], pad: int, counter: "_Counter") -> _Written:
    """Append block after block.  The file is written, not mapped: a full disk kills a process that maps."""
    samples, pixels, labels = 0, hashlib.sha256(), hashlib.sha256()
    margin = ((0, 0), (0, 0), (pad, pad), (pad, pad))
    with (folder / f"{split}.u8").open("wb") as images, (folder / f"{split}_labels.u8").open("wb") as names:
        for block in blocks:
            pixels.update(block.image_NCHW.tobytes())
            labels.update(block.label_N.tobytes())
            images.write(np.pad(block.image_NCHW, margin).tobytes())
            names.write(block.label_N.tobytes())
            samples += len(block.label_N)
            counter.add(len(block.label_N))
        for file in (images, names):
            file.flush()
            os.fsync(file.fileno())
    if samples == 0:
        raise SondeError(f"the {split} files of CIFAR-10 hold no image: copy them again")
    return _Written(samples, pixels.hexdigest() + labels.hexdigest())


class _Counter:
    def __init__(self, total: int, on_progress: OnProgress) -> None:
        self.done, self.total, self.on_progress = 0, total, on_progress
        on_progress(0, total)

    def add(self, images: int) -> None:
        self.done += images
        self.on_progress(self.done, self.total)


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Explain an OSError of the cache folder; the readers explain those of their own files."""
    try:
        yield
    except OSError as error:
        raise SondeError(
            f"cannot keep the decoded images in {folder} ({error.strerror or error}): "
            "name a folder with 300 MB of free space in SONDE_CACHE"
        ) from error


_BATCH_IMAGES = 10_000  # in a published batch
_NUMPY_RECONSTRUCT = np.empty(0).__reduce__()[0]  # NumPy's own, wherever this version keeps it


def _read_folder(files: tuple[Path, ...]) -> Iterator[ImageBlock]:
    for file in files:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise SondeError(f"cannot read {file}: {error.strerror or error}") from error
        yield parse_batch(content, file)


def read_archive(source: ImageSource) -> Callable[[tuple[str, ...]], Iterator[ImageBlock]]:
    """Verify the archive's checksum and return a reader of its batches; nothing is unpacked to disk.

    All members are held in memory (180 MB), because their order in the archive is not the order of reading.
    """
    verify_archive(source.place, source.archive)
    wanted = {f"{BATCHES_FOLDER}/{name}" for name in (*TRAIN_FILES, *TEST_FILES)}
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
            member = f"{BATCHES_FOLDER}/{name}"
            yield parse_batch(members.pop(member), f"{source.place}/{member}")

    return read


def parse_batch(content: bytes, name: Path | str) -> ImageBlock:
    """Read one batch and check its shape and labels."""
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
    """Load a pickle of arrays, with strings of Python 2 as bytes; nothing that it names is imported or run.

    The only admitted globals are the four with which NumPy and Python 3 write arrays and bytes.
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

        # Made for each file, because a pickle can set attributes of a function it is given.
        def dtype(description: Any, align: Any = False, copy: Any = False) -> Any:
            return np.dtype(description, align=bool(align), copy=bool(copy))  # old files hold 0 and 1

        def encode(text: str, encoding: str) -> bytes:
            if encoding not in ("latin1", b"latin1"):
                raise self._refused("_codecs", f"encode to {encoding}")
            return text.encode("latin1")

        self._admitted = {
            ("numpy.core.multiarray", "_reconstruct"): _NUMPY_RECONSTRUCT,
            ("numpy._core.multiarray", "_reconstruct"): _NUMPY_RECONSTRUCT,
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


_DECODED_AT_A_TIME = 5_000  # rows
_LARGEST = 1_000_000_000  # bytes that a file may unpack to; CIFAR-10 in one file has 150 million


def count_images(file: Path) -> int:
    """Rows in the file, once its columns are known to be right."""
    with _readable(file):
        with file.open("rb") as opened:
            size = parquet_size(opened).bytes
        if size > _LARGEST:
            raise SondeError(
                f"{file} unpacks to {size / 1e9:.1f} GB, more than the {_LARGEST / 1e9:.0f} that CIFAR-10 can have: "
                "copy it again"
            )
        schema = pl.scan_parquet(file, glob=False).collect_schema()
        img, label = schema.get("img"), schema.get("label")
        if not _has_bytes(img) or label is None or not label.is_integer():
            columns = ", ".join(f"{name}: {kind}" for name, kind in schema.items())
            raise SondeError(
                f"{file} has the columns {columns}; needed are img: struct<bytes, path> and label: integer"
            )
        return int(pl.scan_parquet(file, glob=False).select(pl.len()).collect().item())


def read_images(file: Path) -> Iterator[ImageBlock]:
    """The images in file order, a block at a time."""
    for first in range(0, count_images(file), _DECODED_AT_A_TIME):
        with _readable(file):
            rows = pl.scan_parquet(file, glob=False).slice(first, _DECODED_AT_A_TIME)
            frame = rows.select(pl.col("img").struct.field("bytes").alias("encoded"), "label").collect()
        image_NCHW = np.empty((len(frame), 3, SIDE, SIDE), np.uint8)
        for row, encoded in enumerate(frame["encoded"]):
            image_NCHW[row] = _decode_CHW(encoded, f"{file}, row {first + row}")
        yield ImageBlock(image_NCHW=image_NCHW, label_N=_labels_of_rows(frame["label"], first, file))


def _decode_CHW(encoded: bytes | None, where: str) -> NDArray[np.uint8]:
    if encoded is None:
        raise SondeError(f"{where}: there is no image: copy the file again")
    try:
        with Image.open(io.BytesIO(encoded), formats=("JPEG", "PNG")) as image:
            size, mode = image.size, image.mode
            pixels_HWC = np.asarray(image) if (size, mode) == ((SIDE, SIDE), "RGB") else None
    except Exception as error:  # a damaged image can raise anything
        raise SondeError(f"{where}: the image cannot be decoded ({error}): copy the file again") from error
    if pixels_HWC is None:
        raise SondeError(f"{where}: the image is {size[0]}×{size[1]} {mode}, not {SIDE}×{SIDE} RGB")
    return pixels_HWC.transpose(2, 0, 1)


def _labels_of_rows(labels: pl.Series, first: int, file: Path) -> NDArray[np.uint8]:
    wrong = (~labels.is_between(0, CLASSES - 1).fill_null(False)).arg_true()
    if len(wrong):
        raise SondeError(f"{file}, row {first + wrong[0]}: label {labels[wrong[0]]} is not in 0..{CLASSES - 1}")
    return labels.cast(pl.UInt8).to_numpy()


def _has_bytes(kind: Any) -> bool:
    return isinstance(kind, pl.Struct) and any(f.name == "bytes" and f.dtype == pl.Binary for f in kind.fields)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        reason = str(error).split("\n", 1)[0]
        raise SondeError(f"{file} cannot be read ({reason}): copy it again") from error
