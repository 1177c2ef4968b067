from pathlib import Path

import pytest

from sonde.core.errors import SondeError
from sonde.store.datasets import (
    BATCHES_FOLDER,
    DATASETS,
    TEST_FILES,
    TRAIN_FILES,
    Absent,
    Archive,
    cache_folder,
    data_folder,
    find_or_mirror_cifar10,
    looked_for,
)

TINY = Archive(name="cifar-10-python.tar.gz", url="http://127.0.0.1/", size=3, md5="")


def pickles(place: Path) -> Path:
    place.mkdir(parents=True)
    for name in (*TRAIN_FILES, *TEST_FILES):
        (place / name).touch()
    return place


def archive(place: Path) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    (place / TINY.name).write_bytes(b"abc")
    return place / TINY.name


def parquet(place: Path, *names: str) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name in names or ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet"):
        (place / name).touch()
    return place


def test_pickles_come_before_the_archive_and_the_archive_before_parquet(tmp_path: Path) -> None:
    parquet(tmp_path)
    assert find_or_mirror_cifar10(tmp_path, TINY).form == "parquet"
    archive(tmp_path)
    assert find_or_mirror_cifar10(tmp_path, TINY).form == "archive"
    pickles(tmp_path / BATCHES_FOLDER)
    assert find_or_mirror_cifar10(tmp_path, TINY).form == "pickles"


@pytest.mark.parametrize("below", [".", "cifar10"])
def test_every_form_is_found_in_the_root_and_in_its_folder_cifar10(tmp_path: Path, below: str) -> None:
    for form, put in (("parquet", parquet), ("archive", archive)):
        put(tmp_path / form / below)
        assert find_or_mirror_cifar10(tmp_path / form, TINY).form == form
    place = pickles(tmp_path / "pickles" / below / BATCHES_FOLDER)
    assert find_or_mirror_cifar10(tmp_path / "pickles", TINY).place == place


@pytest.mark.parametrize("below", ["plain_text", "data", "cifar10/plain_text", "cifar10/data"])
def test_parquet_files_are_found_where_public_copies_keep_them(tmp_path: Path, below: str) -> None:
    place = parquet(tmp_path / below)
    assert find_or_mirror_cifar10(tmp_path, TINY).place == place


def test_the_folder_of_pickles_may_itself_be_the_root(tmp_path: Path) -> None:
    place = pickles(tmp_path / BATCHES_FOLDER)
    assert find_or_mirror_cifar10(place).place == place


def test_a_missing_data_set_names_every_place_and_the_command_that_fetches_it(tmp_path: Path) -> None:
    with pytest.raises(Absent) as caught:
        find_or_mirror_cifar10(tmp_path)
    message = str(caught.value)
    assert all(str(place) in message for place in looked_for(tmp_path))
    assert f"sonde data fetch cifar10 --data-root {tmp_path}" in message
    assert "\n" not in message


def test_a_root_that_does_not_exist_is_a_missing_data_set(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="sonde data fetch cifar10"):
        find_or_mirror_cifar10(tmp_path / "nowhere")


def test_the_default_root_needs_no_option_in_the_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SONDE_CACHE", str(tmp_path))
    with pytest.raises(Absent, match="download it with `sonde data fetch cifar10` "):
        find_or_mirror_cifar10(tmp_path)


def test_a_folder_of_pickles_with_one_missing_names_it(tmp_path: Path) -> None:
    (pickles(tmp_path / BATCHES_FOLDER) / "data_batch_3").unlink()
    with pytest.raises(SondeError, match="lacks data_batch_3"):
        find_or_mirror_cifar10(tmp_path)


def test_an_archive_of_another_size_is_refused_before_it_is_read(tmp_path: Path) -> None:
    archive(tmp_path).write_bytes(b"abcd")
    with pytest.raises(SondeError, match="4 bytes, the published archive 3: remove it"):
        find_or_mirror_cifar10(tmp_path, TINY)


def test_parquet_without_a_test_set_is_refused(tmp_path: Path) -> None:
    parquet(tmp_path, "train.parquet")
    with pytest.raises(SondeError, match=r"no test\*\.parquet"):
        find_or_mirror_cifar10(tmp_path)


def test_a_missing_shard_is_noticed(tmp_path: Path) -> None:
    parquet(tmp_path, "train-00000-of-00002.parquet", "test.parquet")
    with pytest.raises(SondeError, match="should hold the 2 files"):
        find_or_mirror_cifar10(tmp_path)


def test_shards_are_taken_in_order(tmp_path: Path) -> None:
    parquet(tmp_path, "train-00001-of-00002.parquet", "train-00000-of-00002.parquet", "test.parquet")
    assert [file.name[:11] for file in find_or_mirror_cifar10(tmp_path).train] == ["train-00000", "train-00001"]


def test_the_root_is_the_argument_then_the_environment_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SONDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SONDE_DATA", raising=False)
    assert data_folder() == cache_folder() == tmp_path / "cache"
    monkeypatch.setenv("SONDE_DATA", str(tmp_path / "named"))
    assert data_folder() == tmp_path / "named"
    assert data_folder(tmp_path) == tmp_path
    monkeypatch.setenv("SONDE_CACHE", "")
    assert "sonde" in cache_folder().parts


def test_the_table_of_data_sets_names_the_published_archive() -> None:
    published = DATASETS["cifar10"].archive
    assert published.md5 == "c58f30108f718f92721af3b95e74349a"
    assert published.url.startswith("https://www.cs.toronto.edu/")


def test_a_folder_that_may_not_be_entered_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(SondeError, match=r"Permission denied.*change its permissions"):
        find_or_mirror_cifar10(tmp_path)
