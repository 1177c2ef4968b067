"""What is written aside: in place when it is whole, all of it or nothing, and no remains."""

from pathlib import Path

import pytest

from sonde.store.files import ASIDE, set_aside


def test_files_take_their_names_together(tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("old")
    with set_aside(first, second) as aside:
        for path in aside:
            path.write_bytes(b"new")
            assert path.name.startswith(ASIDE)
            assert path.suffix == ".txt"  # a format is told by it
        assert first.read_text() == "old"
        assert not second.exists()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.txt": "new", "b.txt": "new"}


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.write_text("old")

    def fail() -> None:
        with set_aside(file, folder) as (one, other):
            one.write_bytes(b"new")
            other.mkdir()
            (other / "inside").write_bytes(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert file.read_text() == "old"


def test_of_two_who_make_a_folder_the_first_stands(tmp_path: Path) -> None:
    folder = tmp_path / "folder"

    def race() -> None:
        with set_aside(folder) as (late,):
            late.mkdir()
            with set_aside(folder) as (early,):
                early.mkdir()
                (early / "inside").write_bytes(b"early")

    with pytest.raises(OSError, match="not empty"):
        race()
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert (folder / "inside").read_bytes() == b"early"


def test_who_holds_the_lock_clears_remains_and_replaces_a_damaged_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for left in (folder, tmp_path / f"{ASIDE}folder"):
        left.mkdir()
        (left / "damaged").touch()
    with set_aside(folder, locked=True) as (aside,):
        aside.mkdir()
        (aside / "whole").write_bytes(b"")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert [path.name for path in folder.iterdir()] == ["whole"]
