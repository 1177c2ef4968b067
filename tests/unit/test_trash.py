"""`sonde rm` moves runs to a trash inside the store, which no reader looks into."""

import os
from pathlib import Path

import pytest

from conftest import Sonde
from sonde.config import to_tree
from sonde.core.errors import SondeError
from sonde.store.folder import create_run
from sonde.store.listing import TRASH_FOLDER, empty_trash, move_to_trash, remove_without_epoch, trashed
from sonde.store.load import load, verify
from sonde.store.lock import hold
from sonde.studies import STUDIES
from stores import about, write_run

CONFIGS = STUDIES["audit"].configs("quick", (42, 123))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for config in CONFIGS[:4]:
        write_run(tmp_path / "runs", config)
    return tmp_path / "runs"


def test_a_removed_run_is_in_the_trash_and_no_reader_sees_it(runs: Path, sonde: Sonde) -> None:
    gone, *kept = sorted(run.id for run in load(runs).runs)
    refused = sonde("rm", gone, check=False)
    assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
    assert (runs / gone).is_dir()
    sonde("rm", gone, "--yes")
    assert trashed(runs) == [gone]
    assert sorted(run.id for run in load(runs).runs) == kept
    assert not verify(runs).wrong
    assert gone not in sonde("show").stdout
    sonde("export", "--layout", "runs", "--out", "export")
    assert not (runs.parent / "export" / gone).exists()
    (runs / TRASH_FOLDER / gone).rename(runs / gone)
    assert len(load(runs).runs) == 4


def test_runs_are_removed_by_value_and_the_trash_is_emptied(runs: Path, sonde: Sonde) -> None:
    sonde("rm", "--where", "rule=dfa", "--yes")
    assert len(trashed(runs)) == 1
    write_run(runs, CONFIGS[2])
    sonde("rm", "--where", "rule=dfa", "--yes")
    assert len(trashed(runs)) == 2  # under another name
    sonde("rm", "--empty-trash", "--yes")
    assert not trashed(runs)
    assert len(load(runs).runs) == 3


def test_interrupted_runs_are_removed_and_others_stay(runs: Path, sonde: Sonde) -> None:
    left = write_run(runs, CONFIGS[5], state="unfinished", epoch=3)
    sonde("rm", "--interrupted", "--yes")
    assert trashed(runs) == [left]
    assert "no run in runs is interrupted" in sonde("rm", "--interrupted", "--yes", check=False).stderr


def test_a_run_that_a_process_holds_stays(runs: Path) -> None:
    id = load(runs).runs[0].id
    with hold(runs, id), pytest.raises(SondeError, match=r"held by|in use"):
        move_to_trash(runs, id)
    assert (runs / id).is_dir()


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
def test_nothing_is_moved_or_deleted_through_a_link(runs: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("stays")
    id = load(runs).runs[0].id
    (runs / TRASH_FOLDER).symlink_to(outside)
    with pytest.raises(SondeError, match="symbolic link"):
        move_to_trash(runs, id)
    with pytest.raises(SondeError, match="symbolic link"):
        empty_trash(runs)
    (runs / TRASH_FOLDER).unlink()
    (runs / TRASH_FOLDER).mkdir()
    (runs / TRASH_FOLDER / "link").symlink_to(outside)
    (runs / "linked").symlink_to(outside)
    with pytest.raises(SondeError, match="symbolic link"):
        move_to_trash(runs, "linked")
    empty_trash(runs)
    assert (outside / "precious").read_text() == "stays"


def test_what_to_remove_has_to_be_said(runs: Path, sonde: Sonde) -> None:
    for words in (
        ["rm"],
        ["rm", "x", "--interrupted"],
        ["rm", "x", "--empty-trash"],
        ["rm", "x", "--runs", "s3://b/x"],
    ):
        done = sonde(*words, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("sonde: ")


def test_a_run_without_an_epoch_is_removed_for_good_and_one_with_an_epoch_is_not(runs: Path) -> None:
    empty = CONFIGS[5].id
    create_run(runs / empty, to_tree(CONFIGS[5]), about(CONFIGS[5]))
    begun = write_run(runs, CONFIGS[6], state="unfinished", epoch=1)
    for id in (empty, begun):
        remove_without_epoch(runs, id)
    assert not (runs / empty).exists()
    assert (runs / begun).exists()
    assert not trashed(runs)
