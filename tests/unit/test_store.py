import json
import multiprocessing
from pathlib import Path

import polars as pl
import pytest

import sonde
from conftest import tiny_config
from sonde.config import RunConfig, whole_tree
from sonde.errors import SondeError
from sonde.store import files
from sonde.store.lock import Held, hold
from sonde.store.run import Manifest, RunFolder
from stores import assert_a_reader_sees_whole_states, rows


@pytest.fixture
def trained(tmp_path: Path, tiny: RunConfig) -> Path:
    sonde.train(tiny, runs=tmp_path / "runs")
    return tmp_path / "runs" / tiny.id


def test_a_run_folder_holds_configuration_environment_rows_and_weights(
    trained: Path, tiny: RunConfig
) -> None:
    assert sorted(file.name for file in trained.iterdir()) == [
        "initial.safetensors",
        "manifest.json",
        "metrics.parquet",
        "rule.safetensors",
        "run.json",
        "weights.safetensors",
    ]
    stored = sonde.load(trained.parent)
    run = stored[tiny.id]
    assert run.config["model"] == {"name": "res_mlp", "d": 8, "L": 3, "weight_scale": "1/sqrt(L)"}
    assert stored.configs == {tiny.id: whole_tree(tiny)}
    environment = run.manifest.sessions[0]["environment"]
    assert environment["threads"] == 1
    assert {"torch", "sonde", "polars"} <= environment["packages"].keys()
    assert {"host", "processor", "cores"} <= environment["machine"].keys()
    assert "git" in environment
    assert run.manifest.seconds.keys() == {"train", "probes"}
    assert run.label == "Residual MLP, scaled, BP"
    assert stored.rows["run"].unique().to_list() == [tiny.id]
    assert set(stored.rows.filter(metric="hidden_norm")["epoch"]) == {0, 1, 2, 3}


def test_what_is_complete_is_not_trained_again(trained: Path, tiny: RunConfig) -> None:
    before = {file.name: file.stat().st_mtime_ns for file in trained.iterdir()}
    epochs: list[int] = []
    sonde.train(tiny, runs=trained.parent, on_progress=lambda progress: epochs.append(progress.epoch))
    assert epochs == []
    assert {file.name: file.stat().st_mtime_ns for file in trained.iterdir()} == before


def test_a_state_is_invisible_until_its_manifest_is_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "r")
    folder.create({}, {})
    folder.commit(Manifest(epoch=1), rows(1), {"weights": b"one"})
    write = files.write

    def stop_before_the_manifest(path: Path, content: bytes) -> None:
        if path.name == "manifest.json":
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(files, "write", stop_before_the_manifest)
    with pytest.raises(KeyboardInterrupt):
        folder.commit(Manifest(epoch=2), rows(2), {"weights": b"two"})
    monkeypatch.undo()
    manifest, visible = folder.read()
    assert manifest.epoch == 1
    assert visible["value"].to_list() == [1.0]
    assert folder.tensors("weights") == b"one"
    folder.sweep(manifest)
    assert sorted(f.name for f in folder.path.iterdir()) == [
        "manifest.json",
        "metrics-1.parquet",
        "run.json",
        "weights-1.safetensors",
    ]


def test_a_reader_beside_a_writer_always_sees_one_whole_state(tmp_path: Path) -> None:
    assert_a_reader_sees_whole_states(RunFolder(tmp_path / "r"))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("manifest.json", None, r"manifest\.json is missing.*remove .* to train it anew"),
        ("run.json", None, r"run\.json is missing"),
        ("manifest.json", "{", r"manifest\.json is not JSON"),
        ("manifest.json", "[]", r"manifest\.json has no key 'format'"),
        ("manifest.json", '{"format": 0}', r"format is 0, this version reads 1"),
        ("manifest.json", '{"format": 1, "epoch": 1, "files": {}}', r"has no key 'state'"),
        ("manifest.json", '{"format": 1, "state": "complete", "epoch": 1, "files": {}, "mood": 1}', "mood"),
        ("metrics.parquet", None, r"metrics\.parquet is missing, though manifest\.json names it"),
        ("metrics.parquet", "PAR1", r"metrics\.parquet cannot be read"),
        ("run.json", '{"format": 1, "id": "ID", "about": {}, "config": {}}', "has no key 'about.label'"),
        (
            "run.json",
            '{"format": 1, "id": "other", "about": {}, "config": {}}',
            "id is 'other', but the folder",
        ),
    ],
)
def test_a_damaged_run_folder_names_the_file_and_the_fix(
    trained: Path, file: str, content: str | None, message: str
) -> None:
    if content is None:
        (trained / file).unlink()
    else:
        (trained / file).write_text(content.replace("ID", trained.name))
    with pytest.raises(SondeError, match=message):
        sonde.load(trained.parent)


def test_rows_of_another_version_are_refused(trained: Path) -> None:
    pl.DataFrame({"run": ["a"]}).write_parquet(trained / "metrics.parquet")
    with pytest.raises(SondeError, match="columns of another version"):
        sonde.load(trained.parent)


def test_a_store_that_is_a_file_or_absent_says_so(tmp_path: Path, tiny: RunConfig) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SondeError, match="is a file"):
        sonde.load(tmp_path / "file")
    with pytest.raises(SondeError, match="is a file: name a folder"):
        sonde.train(tiny, runs=tmp_path / "file")
    with pytest.raises(SondeError, match="in the way or lies below a file"):
        sonde.train(tiny, runs=tmp_path / "file" / "below")
    with pytest.raises(SondeError, match=r"does not exist: `sonde run"):
        sonde.load(tmp_path / "absent")


def _hold(
    root: str, ready: "multiprocessing.synchronize.Event", stop: "multiprocessing.synchronize.Event"
) -> None:
    with hold(Path(root), "r"):
        ready.set()
        stop.wait(60)


def test_the_second_process_is_told_who_holds_the_run(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    ready, stop = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(str(tmp_path), ready, stop))
    other.start()
    assert ready.wait(60)
    with (
        pytest.raises(Held, match=rf"run r is held by process {other.pid} on .* since \d{{4}}"),
        hold(tmp_path, "r"),
    ):
        pass
    other.kill()
    other.join()
    with hold(tmp_path, "r"):
        pass


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    files.write(path, b"old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(SondeError, match=r"no space left while writing .*a\.json: free some"):
        files.write(path, b"new")
    assert [f.name for f in tmp_path.iterdir()] == ["a.json"]
    assert path.read_bytes() == b"old"


def test_a_run_that_diverges_keeps_its_rows_and_says_so(tmp_path: Path) -> None:
    config = tiny_config(
        epochs=3, optimiser=__import__("sonde.config", fromlist=["Optimiser"]).Optimiser(lr=1e30)
    )
    manifest = sonde.train(config, runs=tmp_path)
    assert manifest.state == "diverged"
    assert "not finite" in str(manifest.message)
    stored = sonde.load(tmp_path)
    losses = stored.rows.filter(metric="batch_loss")
    assert losses["defined"][0]
    assert not losses["defined"].all()
    assert json.loads((tmp_path / config.id / "manifest.json").read_text())["state"] == "diverged"
