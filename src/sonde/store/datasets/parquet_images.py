"""Parquet files with a PNG or JPEG in every row: columns `img: struct<bytes, path>` and `label`.

N samples, C channels, H height, W width.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image

from sonde.core.errors import SondeError
from sonde.store.datasets.cifar10 import CLASSES, SIDE, ImageBlock
from sonde.store.parquet import unpacked_bytes

_DECODED_AT_A_TIME = 5_000  # rows
_LARGEST = 1_000_000_000  # bytes that a file may unpack to; CIFAR-10 in one file has 150 million


def count_images(file: Path) -> int:
    """Rows in the file, once its columns are known to be right."""
    with _readable(file):
        with file.open("rb") as opened:
            size = unpacked_bytes(opened)
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
        yield ImageBlock(image_NCHW=image_NCHW, label_N=_labels(frame["label"], first, file))


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


def _labels(labels: pl.Series, first: int, file: Path) -> NDArray[np.uint8]:
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
        raise SondeError(f"{file} cannot be read_images ({reason}): copy it again") from error
