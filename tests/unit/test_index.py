"""The index of ended runs: the same answer as the folders give, whatever became of them since."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import sonde
from sonde.config import RunConfig
from sonde.core.errors import SondeError
from sonde.store import files, index
from sonde.store import load as loading
from sonde.store.files import Place
from sonde.store.folder import commit, put_manifest, read_manifest, read_trained
from sonde.store.listing import stamps
from sonde.store.load import load_manifests, verify
from sonde.store.run import Runs
from sonde.studies import STUDIES
from stores import at, memory, write_run

CONFIGS = STUDIES["audit"].configs("quick", (1, 2))


@pytest.fixture(params=["folder", "object store"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(index, "RUNS_TO_INDEX", 3)
    with memory():
        yield tmp_path / "runs" if request.param == "folder" else at("memory://bucket/runs")


def fill(store: Place, configs: list[RunConfig]) -> list[str]:
    return [write_run(store, config) for config in configs]


def without_index(store: Place, monkeypatch: pytest.MonkeyPatch) -> Runs:
    with monkeypatch.context() as patch:
        patch.setattr(loading, "read_index", lambda root, _: index.Index(root))
        patch.setattr(loading, "is_due", lambda *_: False)
        return sonde.load(store)


def assert_same(store: Place, monkeypatch: pytest.MonkeyPatch) -> Runs:
    indexed, plain = sonde.load(store), without_index(store, monkeypatch)
    assert indexed.rows.equals(plain.rows)
    assert indexed.runs == plain.runs
    return indexed


def indexed(store: Place) -> set[str]:
    present = stamps(store)
    assert present is not None
    return set(index.read_index(store, present).runs)


def test_the_index_tells_what_the_folders_tell(store: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = fill(store, CONFIGS[:6])
    assert indexed(store) == set()
    sonde.load(store)
    assert indexed(store) == set(ids)
    with monkeypatch.context() as patch:
        patch.setattr("sonde.store.load.read_rows", lambda *_: pytest.fail("a folder was read"))
        assert len(sonde.load(store)) == 6
    assert_same(store, monkeypatch)


def test_how_runs_ended_is_read_from_the_index_and_of_the_others_from_their_folders(
    store: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = fill(store, CONFIGS[:6])
    assert load_manifests(store, ids) == {id: read_manifest(store / id) for id in ids}
    sonde.load(store)
    (new,) = fill(store, CONFIGS[6:7])
    changed = replace(read_manifest(store / ids[0]), message="looked at again")
    put_manifest(store / ids[0], changed)
    expected = {id: read_manifest(store / id) for id in [*ids[:3], new]}
    read = []
    monkeypatch.setattr("sonde.store.load.read_manifest", lambda at: read.append(at.name) or read_manifest(at))
    assert load_manifests(store, [*ids[:3], new, "never-made"]) == expected
    assert sorted(read) == sorted([ids[0], new])


def test_a_store_that_is_not_there_holds_no_runs(store: Place) -> None:
    assert load_manifests(store, ["r"]) == {}


def test_few_runs_need_no_index(store: Place) -> None:
    fill(store, CONFIGS[:2])
    sonde.load(store)
    assert not (store / index.INDEX_FOLDER).exists()


def test_new_runs_are_read_from_their_folders_and_stand_in_order(store: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = fill(store, CONFIGS[:5])
    sonde.load(store)
    more = fill(store, CONFIGS[5:7])
    assert_same(store, monkeypatch)
    assert indexed(store) == set(ids)
    fill(store, CONFIGS[7:9])
    assert_same(store, monkeypatch)
    assert indexed(store) > {*ids, *more}
    present = stamps(store)
    assert present is not None
    named = {block.file for block in index.read_index(store, present).blocks}
    rows = {file.name for file in (store / index.INDEX_FOLDER).iterdir() if file.name.startswith("rows-")}
    assert rows == named, "the rows of an older index were left behind"


def test_a_run_that_was_trained_anew_is_not_taken_from_the_index(store: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fill(store, CONFIGS[:4])[0]
    sonde.load(store)
    folder = store / first
    manifest, rows = read_trained(folder)
    commit(folder, manifest, rows.with_columns(pl.col("value") + 1), {})
    assert first not in indexed(store)
    assert_same(store, monkeypatch)


def test_a_run_that_was_removed_is_gone(store: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fill(store, CONFIGS[:4])[0]
    sonde.load(store)
    if isinstance(store, Path):
        shutil.rmtree(store / first)
    else:
        for file in (store / first).iterdir():
            file.unlink()
    assert first not in [run.id for run in assert_same(store, monkeypatch).runs]


def test_unfinished_runs_are_never_in_the_index(store: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, CONFIGS[:4])
    unfinished = write_run(store, CONFIGS[4], state="unfinished", epoch=3)
    diverged = write_run(store, CONFIGS[5], state="diverged", epoch=3)
    assert_same(store, monkeypatch)
    assert unfinished not in indexed(store)
    assert diverged in indexed(store)


@pytest.mark.parametrize("damage", ["index", "runs", "rows"])
def test_an_index_that_cannot_be_read_is_ignored(damage: str, store: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, CONFIGS[:4])
    sonde.load(store)
    for file in list((store / index.INDEX_FOLDER).iterdir()):
        if file.name.startswith(damage):
            whole = bytearray(file.read_bytes())
            for at in range(10, len(whole), len(whole) // 5):
                whole[at] ^= 1
            files.write(file, bytes(whole))
    assert_same(store, monkeypatch)
    assert indexed(store) == {config.id for config in CONFIGS[:4]}, "the index was not written anew"
    assert_same(store, monkeypatch)


def test_a_file_that_changed_under_the_index_is_read_from_its_folder_and_said(
    store: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = fill(store, CONFIGS[:4])
    whole = sonde.load(store).rows
    file = store / ids[0] / "metrics.parquet"
    content = file.read_bytes()
    files.write(file, content + b"x")
    assert ids[0] not in indexed(store)
    broken = sonde.load(store).broken
    assert broken.keys() == {ids[0]}
    assert "metrics.parquet is not what was stored" in broken[ids[0]]
    assert f"changed since its index was written, and are read from their folders: {ids[0]}" in capsys.readouterr().err
    files.write(file, content)
    assert sonde.load(store).rows.equals(whole)


def test_a_family_of_many_rows_is_left_out_of_the_index_and_read_where_it_is_asked_for(
    store: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "HEAVY", 100)
    fill(store, CONFIGS[:4])
    sonde.load(store)
    light = sonde.load(store, metrics=("test_acc",)).rows
    assert_same(store, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr("sonde.store.load.read_rows", lambda *_: pytest.fail("a folder was read"))
        assert sonde.load(store, metrics=("test_acc",)).rows.equals(light)
        with pytest.raises(pytest.fail.Exception):
            sonde.load(store, metrics=("hidden_norm",))


def test_an_index_in_many_blocks_tells_the_same(store: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "ROWS_A_BLOCK", 1500)
    ids = fill(store, CONFIGS[:7])
    assert_same(store, monkeypatch)
    present = stamps(store)
    assert present is not None
    assert len(index.read_index(store, present).blocks) > 2
    some = sonde.load(store, metrics=("grad_norm", "test_acc"), of=ids[2:4])
    assert set(some.rows["run"]) == set(ids[2:4])
    assert len(some) == 7


def test_a_store_that_may_not_be_written_to_is_read_all_the_same(store: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, CONFIGS[:4])

    def refuse(*_: object) -> None:
        raise SondeError("permission denied")

    monkeypatch.setattr("sonde.store.files.write", refuse)
    assert len(sonde.load(store)) == 4
    assert indexed(store) == set()


def test_only_the_rows_asked_for_are_read(store: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, CONFIGS[:6])
    scalars = pl.col("layer").is_null()
    last = pl.col("step") == pl.col("step").max().over("run", "metric")
    accuracy = pl.col("metric").is_in(["test_acc", "nudge[0.01]"])
    for more in ([], [], CONFIGS[6:], []):
        ids = fill(store, list(more))
        whole = without_index(store, monkeypatch).rows
        assert sonde.load(store, layers=False).rows.equals(whole.filter(scalars))
        assert sonde.load(store, last).rows.equals(whole.filter(last))
        assert sonde.load(store, metrics=("test_acc", "nudge[0.01]")).rows.equals(whole.filter(accuracy))
        assert sonde.load(store, last, metrics=("test_acc",), layers=False).rows.height == len(sonde.load(store))
        assert sonde.load(store, metrics=()).rows.is_empty()
        assert len(sonde.load(store, metrics=())) == 6 + len(ids)
        if more:
            break
    assert len(indexed(store)) == len(CONFIGS)
    assert_same(store, monkeypatch)


def names_in_index(store: Place) -> set[str]:
    return {file.name for file in (store / index.INDEX_FOLDER).iterdir()}


def test_a_reader_that_is_overtaken_by_another_leaves_the_index_of_the_other(
    store: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, CONFIGS[:4])
    ours = index._write_lines

    def overtaken(*known: object) -> None:
        monkeypatch.setattr(index, "_write_lines", ours)
        fill(store, CONFIGS[4:6])  # so that the blocks of the other are other files
        assert len(sonde.load(store)) == 6
        ours(*known)  # type: ignore[arg-type]

    monkeypatch.setattr(index, "_write_lines", overtaken)
    assert len(sonde.load(store)) == 4
    assert verify(store).wrong == {}
    assert indexed(store) == {config.id for config in CONFIGS[:6]}
    assert_same(store, monkeypatch)


def test_an_index_that_could_not_be_finished_leaves_no_rows_behind(
    store: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, CONFIGS[:4])
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            assert any(name.startswith("rows-") for name in names_in_index(store))
            raise OSError("no space left on device")

        patch.setattr(index, "_write_lines", full)
        assert len(sonde.load(store)) == 4
    assert not any(name.startswith("rows-") for name in names_in_index(store))
    assert_same(store, monkeypatch)


def test_an_index_of_another_version_is_named_as_such_and_written_anew(
    store: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, CONFIGS[:4])
    sonde.load(store)
    files.write(store / index.INDEX_FOLDER / index.INDEX_NAME, files.seal({"format": 2, "blocks": [[]]}))
    assert "another version" in verify(store).wrong[index.INDEX_FOLDER][0]
    assert_same(store, monkeypatch)
    assert verify(store).wrong == {}
