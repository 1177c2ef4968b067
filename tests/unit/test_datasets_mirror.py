"""A data set in an object store: copied once, verified, then used like a folder."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sonde.core.errors import SondeError
from sonde.store.datasets import (
    BATCHES_FOLDER,
    CHECKSUMS,
    TEST_FILES,
    TRAIN_FILES,
    Absent,
    Archive,
    chosen,
    data_folder,
    find_or_mirror_cifar10,
    mirror_remote,
)
from sonde.store.remote import Remote
from stores import at, memory

TINY = Archive(name="cifar-10-python.tar.gz", url="http://127.0.0.1/", size=3, md5="")
PICKLES = [f"{BATCHES_FOLDER}/{name}" for name in sorted((*TRAIN_FILES, *TEST_FILES))]
PARQUET = ["data/test-00000-of-00001.parquet", "data/train-00000-of-00001.parquet"]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    monkeypatch.setenv("SONDE_CACHE", str(tmp_path / "cache"))
    with memory():
        yield at("memory://bucket/sets")


def put(root: Remote, *names: str) -> None:
    for name in names:
        (root / name).put(b"abc")


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (PICKLES, "pickles"),
        ([TINY.name], "archive"),
        (PARQUET, "parquet"),
        ([f"cifar10/{TINY.name}"], "archive"),
    ],
)
def test_every_form_is_found_below_a_url(names: list[str], form: str, root: Remote, tmp_path: Path) -> None:
    put(root, *names, "another/large.bin")
    source = find_or_mirror_cifar10(root, TINY)
    assert source.form == form
    assert all(file.read_bytes() == b"abc" for file in source.files)
    assert not list((tmp_path / "cache").rglob("*.bin"))


def test_only_the_form_that_a_folder_would_give_is_copied(root: Remote) -> None:
    assert chosen("sets", [*PICKLES, TINY.name, *PARQUET]) == PICKLES
    assert chosen("sets", [TINY.name, *PARQUET]) == [TINY.name]
    assert chosen("sets", [*PARQUET, "data/validation.parquet"]) == PARQUET
    assert chosen(BATCHES_FOLDER, [*TRAIN_FILES, *TEST_FILES]) == sorted((*TRAIN_FILES, *TEST_FILES))
    assert chosen("sets", ["readme.txt"]) == []


def test_what_is_copied_is_not_read_again_until_it_changes(root: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root, TINY.name)
    first = find_or_mirror_cifar10(root, TINY)
    with monkeypatch.context() as patch:
        patch.setattr(Remote, "read_bytes", lambda self: pytest.fail("it was read again"))
        assert find_or_mirror_cifar10(root, TINY) == first
    (root / TINY.name).put(b"xyz")
    again = find_or_mirror_cifar10(root, TINY)
    assert again.place != first.place
    assert again.place.read_bytes() == b"xyz"


def test_a_copy_that_lost_bytes_is_made_anew(root: Remote) -> None:
    put(root, TINY.name)
    place = find_or_mirror_cifar10(root, TINY).place
    place.write_bytes(b"ab")
    assert find_or_mirror_cifar10(root, TINY).place.read_bytes() == b"abc"
    assert json.loads((place.parents[1] / CHECKSUMS).read_text()) == {
        f"sets/{TINY.name}": {
            "size": 3,
            "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        }
    }


def test_several_runs_that_start_at_once_copy_once(root: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root, TINY.name)
    reads: list[str] = []
    read = Remote.read_bytes

    def counted(self: Remote) -> bytes:
        reads.append(self.name)
        return read(self)

    monkeypatch.setattr(Remote, "read_bytes", counted)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(find_or_mirror_cifar10(root, TINY))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert len(reads) == 2, "without an MD5 from the store, one copy reads a file twice"


def listed(tag: str = "", size: int = 3) -> dict[str, dict[str, Any]]:
    return {"a": {"ETag": f'"{tag}"', "size": size}}


def test_the_md5_of_the_listing_is_believed(root: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root, "a")
    reads: list[str] = []
    read = Remote.read_bytes
    monkeypatch.setattr(Remote, "read_bytes", lambda self: reads.append(self.name) or read(self))  # type: ignore[func-returns-value]
    mirror_remote(root, ["a"], listed("900150983cd24fb0d6963f7d28e17f72"))
    assert reads == ["a"]
    mirror_remote(root, ["a"], listed("d41d8cd98f00b204e9800998ecf8427e-2"))
    assert reads == ["a"] * 3, "a tag that is no MD5 is made up for by reading again"


def test_a_file_that_arrives_wrong_is_refused(root: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root, "a")
    with pytest.raises(SondeError, match="has 3 bytes, but 4 are listed: try again"):
        mirror_remote(root, ["a"], listed(size=4))
    answers = iter([b"abc", b"abd"])
    monkeypatch.setattr(Remote, "read_bytes", lambda self: next(answers))
    with pytest.raises(SondeError, match="another content each time"):
        mirror_remote(root, ["a"], listed())


def test_a_url_without_the_data_set_says_what_to_put_there(root: Remote) -> None:
    put(root, "readme.txt")
    with pytest.raises(Absent, match=r"^CIFAR-10 is not below memory://bucket/sets: put cifar-10-python.tar.gz there"):
        find_or_mirror_cifar10(root, TINY)


def test_the_environment_may_name_a_url(root: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SONDE_DATA", "memory://bucket/sets")
    assert data_folder() == root
    assert data_folder(Path("here")) == Path("here")
