"""Images decoded once into flat uint8 files, which every run maps into memory.

N samples, C channels, H height, W width.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sonde.core.errors import SondeError
from sonde.store.datasets.cache import cache_folder, made_once
from sonde.store.datasets.cifar10 import SIDE, TEST, TRAIN, ImageBlock, Source

PAD = 4  # black pixels on every side of a training image, so that a random crop is a plain window
CACHE_LAYOUT = 1  # of the files; raise it when they change

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Images:
    """The data set as memory-mapped arrays; `train_NCHW` is padded.

    `fingerprint` is the checksum of all pixels and labels, whatever form they were read from.
    """

    train_NCHW: NDArray[np.uint8]
    train_label_N: NDArray[np.uint8]
    test_NCHW: NDArray[np.uint8]
    test_label_N: NDArray[np.uint8]
    form: str
    fingerprint: str


def open_images(source: Source, on_progress: OnProgress = lambda done, total: None) -> Images:
    """The decoded images of a source: from the cache if they are there, else decoded into it now.

    Several processes may ask at once: one decodes, the others wait for it.
    """
    folder = cache_folder() / "decoded" / f"cifar10-{_key(source)}"
    with _writable(folder):
        images = made_once(folder, _load, lambda aside: _decode(source, aside, on_progress))
    if images is None:
        raise SondeError(f"{folder} was changed while it was written: remove it and try again")
    return images


def _key(source: Source) -> str:
    """Names the files as they are now: any of them replaced or changed gives another key."""
    known = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in source.files]
    return hashlib.sha256(json.dumps([CACHE_LAYOUT, source.form, known]).encode()).hexdigest()[:16]


def _load(folder: Path) -> Images | None:
    """The cache if it is whole."""
    try:
        about = json.loads((folder / "about.json").read_text())
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


def _decode(source: Source, folder: Path, on_progress: OnProgress) -> None:
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


def _blocks(source: Source) -> tuple[int, Iterator[ImageBlock], Iterator[ImageBlock]]:
    """How many images to expect, and the two splits block by block."""
    if source.form == "parquet":
        from sonde.store.datasets import parquet_images

        def read(files: tuple[Path, ...]) -> Iterator[ImageBlock]:
            return (block for file in files for block in parquet_images.read(file))

        return sum(parquet_images.count(file) for file in source.files), read(source.train), read(source.test)
    from sonde.store.datasets import pickled_batches

    total = pickled_batches.BATCH_IMAGES * len((*TRAIN, *TEST))
    if source.form == "archive":
        reader = pickled_batches.from_archive(source)
        return total, reader(TRAIN), reader(TEST)
    return total, pickled_batches.from_folder(source.train), pickled_batches.from_folder(source.test)


@dataclass(frozen=True)
class _Written:
    samples: int
    digest: str


def _write(folder: Path, split: str, blocks: Iterator[ImageBlock], pad: int, counter: "_Counter") -> _Written:
    """Append block after block; written rather than mapped, since a full disk kills a process that maps."""
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
    """The readers explain errors of their own files, so what is left concerns the cache."""
    try:
        yield
    except OSError as error:
        raise SondeError(
            f"cannot keep the decoded images in {folder} ({error.strerror or error}): "
            "name a folder with 300 MB of free space in SONDE_CACHE"
        ) from error
