import hashlib
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image

from sonde.core.errors import SondeError
from sonde.store.datasets import BATCHES_FOLDER, TEST_FILES, TRAIN_FILES, Archive, ImageSource, decoded
from sonde.store.datasets.decoded import load_arrays
from sonde.tasks.images import read_digits


def some_images(images: int, seed: int = 0) -> tuple[np.ndarray, list[int]]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (images, 3072), np.uint8), rng.integers(0, 10, images).tolist()


def batch(images: int = 4, protocol: int = 2, **changes: Any) -> bytes:
    pixels, labels = some_images(images)
    return pickle.dumps({b"data": pixels, b"labels": labels} | {k.encode(): v for k, v in changes.items()}, protocol)


def published_batch(pixels: np.ndarray, labels: list[int]) -> bytes:
    """Opcode by opcode what Python 2 and the NumPy of 2009 wrote."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    minus_one = b"J" + struct.pack("<i", -1)
    array = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + b"K\x00\x85" + text(b"b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + text(b"|") + b"NNN" + minus_one + minus_one + b"K\x00tb"
    shape = b"M" + struct.pack("<H", len(pixels)) + b"M" + struct.pack("<H", 3072) + b"\x86"
    array += b"(K\x01" + shape + dtype + b"\x89" + text(pixels.tobytes()) + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + numbers + b"u."


def test_a_batch_as_it_was_published_is_read() -> None:
    pixels, labels = some_images(300)
    block = decoded.parse_batch(published_batch(pixels, labels), "data_batch_1")
    assert (block.image_NCHW.reshape(-1, 3072) == pixels).all()
    assert block.label_N.tolist() == labels


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("core", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_batches_of_every_numpy_are_read(protocol: int, core: bytes) -> None:
    content = batch(protocol=protocol)
    if protocol < 4:  # later ones carry the length of the name
        content = content.replace(b"numpy._core.multiarray", core)
    pixels, labels = some_images(4)
    block = decoded.parse_batch(content, "data_batch_1")
    assert (block.image_NCHW.reshape(-1, 3072) == pixels).all()
    assert block.label_N.tolist() == labels


class Malice:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.trace}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_does_not_run_and_is_named(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "trace"
    content = batch(protocol=protocol, extra=Malice(trace)) if protocol < 5 else pickle.dumps(Malice(trace), 5)
    with pytest.raises(SondeError, match=r"data_batch_1 asks for (posix|nt)\.system"):
        load_arrays(content, tmp_path / "data_batch_1")
    assert not trace.exists()


@pytest.mark.parametrize("asked", ["builtins eval", "numpy load", "numpy._core.numeric _frombuffer", "codecs open"])
def test_no_other_global_is_admitted(asked: str) -> None:
    module, name = asked.split()
    with pytest.raises(SondeError, match=f"asks for {module}.{name}"):
        load_arrays(f"c{module}\n{name}\n.".encode(), "data_batch_1")


def test_bytes_are_only_written_in_latin1() -> None:
    with pytest.raises(SondeError, match="encode to rot13"):
        load_arrays(b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.", "data_batch_1")


def test_a_pickle_cannot_change_what_the_next_one_is_given() -> None:
    spoiling = b"\x80\x02cnumpy\ndtype\nN}X\x0c\x00\x00\x00__defaults__K\x01\x85s\x86b."
    load_arrays(spoiling, "spoiling")
    assert decoded.parse_batch(batch(), "next").image_NCHW.shape == (4, 3, 32, 32)


@pytest.mark.parametrize("kept", [0, 1, 40, 5000, -1])
def test_a_pickle_cut_short_is_named(kept: int) -> None:
    with pytest.raises(SondeError, match=r"some/data_batch_1 cannot be read, .*: fetch it again"):
        load_arrays(batch()[:kept], "some/data_batch_1")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"labels": [1, 2, 3]}, "3 labels for 4 images"),
        ({"labels": [1, 2, 10, 3]}, "row 2: label 10 is not in 0..9"),
        ({"labels": [1, 2, 3, -1]}, "row 3: label -1"),
        ({"labels": "abcd"}, "labels are not a list of integers"),
        ({"labels": [[1], [1, 2]]}, "labels are not a list of integers"),
        ({"data": np.zeros((4, 3071), np.uint8)}, r"data is uint8 \(4, 3071\)"),
        ({"data": np.zeros((4, 3072))}, r"data is float64 \(4, 3072\)"),
        ({"data": [1]}, "data is list"),
    ],
)
def test_a_batch_that_is_not_images_and_labels_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SondeError, match=f"data_batch_1.*{complaint}"):
        decoded.parse_batch(batch(**changes), "data_batch_1")


def test_a_pickle_of_something_else_is_refused() -> None:
    with pytest.raises(SondeError, match="holds a list"):
        decoded.parse_batch(pickle.dumps([1]), "data_batch_1")
    with pytest.raises(SondeError, match="has no data"):
        decoded.parse_batch(pickle.dumps({}), "data_batch_1")


def packed(path: Path, members: dict[str, bytes]) -> ImageSource:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    content = path.read_bytes()
    archive = Archive(name=path.name, url="", size=len(content), md5=hashlib.md5(content).hexdigest())
    return ImageSource(form="archive", place=path, train=(path,), test=(path,), archive=archive)


def test_the_archive_is_read_in_the_order_of_the_batches_and_unpacks_nothing(tmp_path: Path) -> None:
    members = {f"{BATCHES_FOLDER}/{name}": batch(images) for images, name in enumerate((*TRAIN_FILES, *TEST_FILES), 2)}
    source = packed(tmp_path / "a.tar.gz", {"../outside": b"", **dict(reversed(members.items()))})
    read = decoded.read_archive(source)
    assert [len(block.label_N) for block in read(TRAIN_FILES)] == [2, 3, 4, 5, 6]
    assert [len(block.label_N) for block in read(TEST_FILES)] == [7]
    assert [file.name for file in tmp_path.iterdir()] == ["a.tar.gz"]


def test_an_archive_with_another_checksum_is_not_read(tmp_path: Path) -> None:
    source = packed(tmp_path / "a.tar.gz", {})
    content = bytearray(source.place.read_bytes())
    content[-1] ^= 1
    source.place.write_bytes(content)
    with pytest.raises(SondeError, match=r"checksum .* published archive .*: remove it and fetch it again"):
        decoded.read_archive(source)


def test_an_archive_without_a_batch_names_it(tmp_path: Path) -> None:
    members = {f"{BATCHES_FOLDER}/{name}": batch() for name in TRAIN_FILES}
    with pytest.raises(SondeError, match=f"lacks {BATCHES_FOLDER}/test_batch"):
        decoded.read_archive(packed(tmp_path / "a.tar.gz", members))


def encoded(pixels_HWC: np.ndarray, form: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels_HWC).save(buffer, form)
    return buffer.getvalue()


def table(path: Path, images: list[bytes | None], labels: list[int | None]) -> Path:
    img = [{"bytes": content, "path": None} for content in images]
    kinds: dict[str, Any] = {"img": pl.Struct({"bytes": pl.Binary, "path": pl.String}), "label": pl.Int64}
    pl.DataFrame({"img": img, "label": labels}, schema=kinds).write_parquet(path)
    return path


def pictures(images: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(0, 256, (images, 32, 32, 3), np.uint8))


def test_parquet_of_png_gives_back_the_pixels_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded, "_DECODED_AT_A_TIME", 3)
    images = pictures(7)
    file = table(tmp_path / "train.parquet", [encoded(image) for image in images], [0, 1, 2, 3, 4, 5, 9])
    blocks = list(decoded.read_images(file))
    assert decoded.count_images(file) == 7
    assert [len(block.label_N) for block in blocks] == [3, 3, 1]
    assert (np.concatenate([b.image_NCHW for b in blocks]) == np.stack(images).transpose(0, 3, 1, 2)).all()
    assert np.concatenate([b.label_N for b in blocks]).tolist() == [0, 1, 2, 3, 4, 5, 9]


def test_parquet_of_jpeg_gives_what_pillow_decodes(tmp_path: Path) -> None:
    content = encoded(pictures(1)[0], "JPEG")
    (block,) = decoded.read_images(table(tmp_path / "test.parquet", [content], [3]))
    with Image.open(io.BytesIO(content)) as image:
        assert (block.image_NCHW[0] == np.asarray(image).transpose(2, 0, 1)).all()


@pytest.mark.parametrize(
    ("image", "label", "complaint"),
    [
        (b"\xff\xd8\xff\xe0 not an image", 0, "cannot be decoded"),
        (encoded(pictures(1)[0])[:1000], 0, "cannot be decoded"),
        (encoded(np.zeros((28, 28, 3), np.uint8)), 0, "28×28 RGB, not 32×32 RGB"),
        (encoded(np.zeros((32, 32), np.uint8)), 0, "32×32 L, not 32×32 RGB"),
        (encoded(pictures(1)[0], "BMP"), 0, "cannot be decoded"),
        (None, 0, "there is no image"),
        (encoded(pictures(1)[0]), 10, r"label 10 is not in 0\.\.9"),
        (encoded(pictures(1)[0]), None, "label None"),
    ],
)
def test_a_bad_row_is_named_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: bytes | None, label: int | None, complaint: str
) -> None:
    monkeypatch.setattr(decoded, "_DECODED_AT_A_TIME", 2)
    good = encoded(pictures(1)[0])
    file = table(tmp_path / "train.parquet", [good, good, good, image], [1, 1, 1, label])
    with pytest.raises(SondeError, match=rf"train\.parquet, row 3: .*{complaint}"):
        list(decoded.read_images(file))


def test_other_columns_and_other_files_are_refused(tmp_path: Path) -> None:
    pl.DataFrame({"image": [b""], "label": [0]}).write_parquet(tmp_path / "train.parquet")
    with pytest.raises(SondeError, match="has the columns image: Binary, label: Int64; needed are img"):
        list(decoded.read_images(tmp_path / "train.parquet"))
    (tmp_path / "train.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(SondeError, match=r"train\.parquet cannot be read"):
        list(decoded.read_images(tmp_path / "train.parquet"))


def test_digits_are_those_scikit_learn_loads() -> None:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    images, labels = read_digits()
    theirs = load_digits()
    assert (images == theirs.images).all()
    assert (labels == theirs.target).all()


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SondeError, match="pip install scikit-learn"):
        read_digits()
