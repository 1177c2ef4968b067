import multiprocessing
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sonde.core.errors import SondeError
from sonde.store.datasets import BATCHES_FOLDER, TEST_FILES, TRAIN_FILES, ImageSource, decoded, find_or_mirror_cifar10
from sonde.store.datasets.decoded import open_images
from sonde.store.files import ASIDE


def batch(images: int, seed: int) -> dict[bytes, Any]:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(1, 256, (images, 3072), np.uint8)
    return {b"data": pixels, b"labels": rng.integers(0, 10, images).tolist()}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageSource:
    monkeypatch.setenv("SONDE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data" / BATCHES_FOLDER
    folder.mkdir(parents=True)
    for seed, name in enumerate((*TRAIN_FILES, *TEST_FILES)):
        (folder / name).write_bytes(pickle.dumps(batch(20, seed), 2))
    return find_or_mirror_cifar10(tmp_path / "data")


def caches() -> list[Path]:
    return sorted(path for path in Path(os.environ["SONDE_CACHE"], "decoded").iterdir() if path.is_dir())


def test_training_images_are_padded_with_black_and_test_images_are_not(source: ImageSource) -> None:
    images = open_images(source)
    pixels = np.concatenate([batch(20, seed)[b"data"] for seed in range(5)]).reshape(-1, 3, 32, 32)
    assert images.train_NCHW.shape == (100, 3, 40, 40)
    assert (images.train_NCHW[:, :, 4:36, 4:36] == pixels).all()
    assert images.train_NCHW.astype(int).sum() == pixels.astype(int).sum()
    assert (images.test_NCHW == np.asarray(batch(20, 5)[b"data"]).reshape(-1, 3, 32, 32)).all()
    assert images.train_label_N.tolist() == [y for seed in range(5) for y in batch(20, seed)[b"labels"]]


def test_the_cache_is_used_again_and_is_mapped(source: ImageSource, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_images(source)
    monkeypatch.setattr(decoded, "_decode", None)
    again = open_images(source)
    assert isinstance(again.train_NCHW, np.memmap)
    assert (again.train_NCHW == first.train_NCHW).all()
    assert again.fingerprint == first.fingerprint


def test_writing_to_the_arrays_does_not_reach_the_cache(source: ImageSource) -> None:
    images = open_images(source)
    images.test_NCHW[0] = 0
    assert open_images(source).test_NCHW[0].any()


def test_a_changed_file_is_decoded_anew_with_another_fingerprint(source: ImageSource) -> None:
    before = open_images(source)
    source.train[0].write_bytes(pickle.dumps(batch(20, 99), 2))
    os.utime(source.train[0], ns=(1, 1))
    after = open_images(source)
    assert len(caches()) == 2
    assert after.fingerprint != before.fingerprint
    assert (after.train_NCHW != before.train_NCHW).any()


def test_the_fingerprint_depends_on_pixels_and_labels_only(source: ImageSource, tmp_path: Path) -> None:
    before = open_images(source).fingerprint
    moved = source.place.rename(tmp_path / BATCHES_FOLDER)
    assert open_images(find_or_mirror_cifar10(moved)).fingerprint == before


@pytest.mark.parametrize("file", ["train.u8", "about.json"])
def test_a_damaged_cache_is_decoded_anew(source: ImageSource, file: str) -> None:
    before = open_images(source).fingerprint
    os.truncate(caches()[0] / file, 10)
    images = open_images(source)
    assert images.fingerprint == before
    assert images.train_NCHW.shape == (100, 3, 40, 40)


def test_an_error_leaves_no_half_written_cache(source: ImageSource) -> None:
    source.test[0].write_bytes(b"nonsense")
    with pytest.raises(SondeError, match="test_batch cannot be read"):
        open_images(source)
    assert caches() == []


def test_what_a_killed_process_left_is_swept(source: ImageSource) -> None:
    open_images(source)
    folder = caches()[0]
    folder.rename(folder.with_name(ASIDE + folder.name))
    open_images(source)
    assert caches() == [folder]


def test_progress_counts_images(source: ImageSource) -> None:
    seen: list[tuple[int, int]] = []
    open_images(source, on_progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == [0, 20, 40, 60, 80, 100, 120]
    assert {total for _, total in seen} == {60_000}


def test_a_cache_folder_that_cannot_be_written_names_the_variable(
    source: ImageSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SONDE_CACHE", str(tmp_path / "file"))
    with pytest.raises(SondeError, match=r"cannot keep the decoded images in .*file.*SONDE_CACHE"):
        open_images(source)


def test_an_empty_data_set_is_refused(source: ImageSource) -> None:
    for file in source.test:
        file.write_bytes(pickle.dumps(batch(0, 0), 4))
    with pytest.raises(SondeError, match="test files of CIFAR-10 hold no image"):
        open_images(source)


def _open(source: ImageSource, barrier: object, answers: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    progress: list[int] = []
    images = open_images(source, on_progress=lambda done, total: progress.append(done))
    answers.put((bool(progress), images.fingerprint, int(images.train_NCHW.sum())))  # type: ignore[attr-defined]


def test_several_processes_at_once_decode_one_valid_cache(source: ImageSource) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(3), context.Queue()
    processes = [context.Process(target=_open, args=(source, barrier, answers)) for _ in range(3)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    answers.close()
    answers.join_thread()
    assert sum(decoded_it for decoded_it, *_ in found) == 1
    assert len({tuple(rest) for _, *rest in found}) == 1
    assert len(caches()) == 1


def test_the_form_is_part_of_the_key(source: ImageSource) -> None:
    assert decoded._key(source) != decoded._key(replace(source, form="parquet"))
