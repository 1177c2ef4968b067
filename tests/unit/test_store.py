import json
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import sonde
from conftest import tiny_config
from sonde.config import RunConfig, whole_tree
from sonde.core.errors import SondeError
from sonde.engine.bundles import Ledger
from sonde.store import files
from sonde.store.files import place, seal
from sonde.store.folder import clean_up, commit, create_run, parquet, read_manifest, read_tensors, read_trained
from sonde.store.listing import clean_up_ended
from sonde.store.load import verify
from sonde.store.lock import Held, hold
from sonde.store.run import open_run
from sonde.store.schemas import Manifest
from stores import assert_a_reader_sees_whole_states, forge, memory, rows, without_checksums


@pytest.fixture
def trained(tmp_path: Path, tiny: RunConfig) -> Path:
    sonde.train(tiny, runs=tmp_path / "runs")
    return tmp_path / "runs" / tiny.id


def test_a_run_folder_holds_configuration_environment_rows_and_weights(trained: Path, tiny: RunConfig) -> None:
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
    assert run.manifest.seconds.keys() == {"train", "processor", "probes"}
    assert run.label == "ReLU ResMLP, weights × 1/√L, BP"
    assert stored.rows["run"].unique().to_list() == [tiny.id]
    assert set(stored.rows.filter(metric="hidden_norm")["epoch"]) == {0, 1, 2, 3}


def test_what_is_complete_is_not_trained_again(trained: Path, tiny: RunConfig) -> None:
    before = {file.name: file.stat().st_mtime_ns for file in trained.iterdir()}
    epochs: list[int] = []
    sonde.train(tiny, runs=trained.parent, on_progress=lambda progress: epochs.append(progress.epoch))
    assert epochs == []
    assert {file.name: file.stat().st_mtime_ns for file in trained.iterdir()} == before


def test_a_state_is_invisible_until_its_manifest_is_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "r"
    create_run(folder, {}, {})
    commit(folder, Manifest(epoch=1), rows(1), {"weights": b"one"})
    write = files.write

    def stop_before_the_manifest(path: Path, content: bytes) -> None:
        if path.name == "manifest.json":
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(files, "write", stop_before_the_manifest)
    with pytest.raises(KeyboardInterrupt):
        commit(folder, Manifest(epoch=2), rows(2), {"weights": b"two"})
    monkeypatch.undo()
    manifest, visible = read_trained(folder)
    assert manifest.epoch == 1
    assert visible["value"].to_list() == [1.0]
    assert read_tensors(folder, "weights") == b"one"
    clean_up(folder, manifest)
    assert sorted(f.name for f in folder.iterdir()) == [
        "manifest.json",
        "metrics-1.parquet",
        "run.json",
        "weights-1.safetensors",
    ]


@pytest.mark.parametrize("root", ["folder", "memory://bucket/runs"])
def test_what_a_run_kept_that_was_killed_after_its_last_manifest_goes_with_the_next_command(
    root: str, tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with memory():
        store = place(root.replace("folder", str(tmp_path)))
        folder = store / tiny.id
        with monkeypatch.context() as patch:
            patch.setattr("sonde.store.folder.clean_up", lambda *_: None)
            sonde.train(tiny, runs=store)
        names = {file.name for file in folder.iterdir()}
        assert {"metrics-2.parquet", "resume-1.safetensors"} < names
        with hold(store, tiny.id):
            clean_up_ended(store, {tiny.id: read_manifest(folder)})
        assert {file.name for file in folder.iterdir()} == names, "somebody held the run"
        ledger = Ledger([tiny], runs=store, on_event=lambda _: None, on_notice=lambda _: None)
        assert ledger.clean_up_ended() == []
        assert verify(store).left_over == []
        assert verify(store).wrong == {}


def test_a_reader_beside_a_writer_always_sees_one_whole_state(tmp_path: Path) -> None:
    assert_a_reader_sees_whole_states(tmp_path / "r")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("manifest.json", None, r"manifest\.json is missing"),
        ("run.json", None, r"run\.json is missing"),
        ("manifest.json", "{", r"manifest\.json is not JSON"),
        ("manifest.json", "[]", r"manifest\.json has no key 'format'"),
        ("manifest.json", '{"format": 0}', r"format is 0, this version reads 1 and 2"),
        ("manifest.json", '{"format": 1, "epoch": 1, "files": {}}', r"has no key 'state'"),
        ("manifest.json", '{"format": 1, "state": "complete", "epoch": 1, "files": {}, "mood": 1}', "mood"),
        ("metrics.parquet", None, r"metrics\.parquet is missing, though manifest\.json names it"),
        ("metrics.parquet", "PAR1", r"metrics\.parquet is not what was stored"),
        ("run.json", "{}", r"run\.json has no key 'format'"),
    ],
)
def test_a_damaged_run_folder_names_the_file_and_the_fix(
    trained: Path, file: str, content: str | None, message: str
) -> None:
    if content is None:
        (trained / file).unlink()
    else:
        (trained / file).write_text(content)
    with pytest.raises(SondeError, match=message + ".*move .* away to train it anew"):
        sonde.load(trained.parent)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda known: known | {"format": 3}, r"run\.json: format is 3, this version reads 1"),
        (lambda known: known | {"id": "other"}, "id is 'other', but the folder"),
        (lambda known: known | {"about": {}}, r"run\.json has no key 'about\.label'"),
        (
            lambda known: known | {"about": known["about"] | {"depth": "3"}},
            r"has about\.depth = '3': input should",
        ),
        (lambda known: known | {"mood": 1}, "has a key 'mood' that this version does not know"),
        (
            lambda known: known | {"config": known["config"] | {"seed": 43}},
            "its configuration is that of '.*-s43-",
        ),
        (lambda known: known | {"config": known["config"] | {"seed": True}}, r"has config\.seed = True"),
        (
            lambda known: known | {"config": known["config"] | {"epochs": 10**4000}},
            r"has config\.epochs = .{,61}: ",
        ),
        (
            lambda known: known | {"guests": ["../../x"]},
            r"guests\.0 = '\.\./\.\./x': a file of the run's own",
        ),
        (lambda known: [known], "has no key 'format'"),
    ],
)
def test_a_forged_description_is_refused_in_one_line(trained: Path, change: Any, message: str) -> None:
    folder = trained
    forge(folder, "run.json", json.dumps(change(open_run(folder).description)).encode())
    with pytest.raises(SondeError, match=message) as refused:
        sonde.load(trained.parent)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": {"metrics": "../other/metrics.parquet"}}, "is named without a path"),
        ({"files": {"metrics": "/etc/passwd"}}, "is named without a path"),
        ({"files": {"metrics": 3}}, r"has files\.metrics = 3: input should be a valid string"),
        ({"files": {"metrics": "run.jsonl"}}, r"names run\.jsonl without a checksum"),
        ({"epoch": "3"}, r"has epoch = '3': input should be a valid integer"),
        ({"epoch": 10**4000}, "has epoch = "),
        ({"state": "splendid"}, "has state = 'splendid'"),
        ({"sessions": {}}, r"has sessions = \{\}"),
    ],
)
def test_a_forged_manifest_is_refused_in_one_line(trained: Path, change: dict[str, Any], message: str) -> None:
    path = trained / "manifest.json"
    known = json.loads(path.read_text()) | change
    del known["sha256"]
    path.write_bytes(seal(known))
    with pytest.raises(SondeError, match=message) as refused:
        sonde.load(trained.parent)
    assert "\n" not in str(refused.value)


def test_json_nested_a_hundred_thousand_deep_is_refused_in_one_line(trained: Path) -> None:
    for name in ("run.json", "manifest.json"):
        (trained / name).write_text("[" * 100_000)
        with pytest.raises(SondeError, match=rf"{name} is not JSON"):
            open_run(trained) if name == "run.json" else read_manifest(trained)


def test_a_seed_changed_in_a_manifest_of_0_1_0_is_noticed_too(trained: Path) -> None:
    without_checksums(trained)
    path = trained / "run.json"
    path.write_text(path.read_text().replace('"seed": 42', '"seed": 43'))
    with pytest.raises(SondeError, match="its configuration is that of"):
        sonde.load(trained.parent)


def test_rows_of_another_version_or_run_are_refused(trained: Path) -> None:
    folder = trained
    _, mine = read_trained(folder)
    forge(folder, "metrics.parquet", parquet(mine.with_columns(run=pl.lit("other"))))
    with pytest.raises(SondeError, match="has rows of 'other', but the run is"):
        sonde.load(trained.parent)
    forge(folder, "metrics.parquet", parquet(pl.DataFrame({"run": ["a"]})))
    with pytest.raises(SondeError, match="columns of another version"):
        sonde.load(trained.parent)
    forge(folder, "metrics.parquet", b"PAR1")
    with pytest.raises(SondeError, match=r"metrics\.parquet cannot be read"):
        sonde.load(trained.parent)


def test_more_rows_than_memory_holds_are_refused_before_they_are_unpacked(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROWS_OF_RUN", 1000)
    folder = trained
    _, mine = read_trained(folder)
    content = parquet(pl.concat([mine] * 20))
    forge(folder, "metrics.parquet", content)
    with pytest.raises(SondeError, match=r"has more rows than the 1,000 that a run may have"):
        sonde.load(trained.parent)
    with pytest.raises(SondeError, match=r"measure less often"):
        commit(folder, read_manifest(folder), pl.concat([mine] * 20), {})


def test_a_flipped_bit_in_the_state_of_an_interrupted_run_stops_the_resume(tmp_path: Path, tiny: RunConfig) -> None:
    sonde.train(tiny, runs=tmp_path, should_stop=lambda: True)
    for file in sorted((tmp_path / tiny.id).iterdir()):
        if file.name == "log.txt":
            continue
        whole = file.read_bytes()
        file.write_bytes(whole[:-20] + bytes([whole[-20] ^ 4]) + whole[-19:])
        with pytest.raises(SondeError, match=rf"{file.name} is not (what was stored|JSON)"):
            sonde.train(tiny, runs=tmp_path)
        file.write_bytes(whole)
    assert sonde.train(tiny, runs=tmp_path).state == "complete"


def test_a_store_without_checksums_is_read_and_says_once_that_it_cannot_be_verified(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = sonde.load(trained.parent).rows
    assert capsys.readouterr().err == ""
    without_checksums(trained)
    for _ in range(2):
        assert sonde.load(trained.parent).rows.equals(whole)
    told = capsys.readouterr().err
    assert told.count("1 run in ") == 1
    assert "stored without checksums, by 0.1.0: the numbers cannot be verified" in told


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


def _hold(root: str, ready: "multiprocessing.synchronize.Event", stop: "multiprocessing.synchronize.Event") -> None:
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


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    files.write(path, b"old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(SondeError, match=r"no space left while writing .*a\.json: free some"):
        files.write(path, b"new")
    assert [f.name for f in tmp_path.iterdir()] == ["a.json"]
    assert path.read_bytes() == b"old"


def test_a_run_that_diverges_keeps_its_rows_and_says_so(tmp_path: Path) -> None:
    config = tiny_config(epochs=3, optimiser=__import__("sonde.config", fromlist=["Optimiser"]).Optimiser(lr=1e30))
    manifest = sonde.train(config, runs=tmp_path)
    assert manifest.state == "diverged"
    assert "not finite" in str(manifest.message)
    stored = sonde.load(tmp_path)
    losses = stored.rows.filter(metric="batch_loss")
    assert losses["defined"][0]
    assert not losses["defined"].all()
    assert json.loads((tmp_path / config.id / "manifest.json").read_text())["state"] == "diverged"


def test_a_copied_run_is_refused_and_blocks_no_other(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = trained.with_name(f"{trained.name}-copy")
    shutil.copytree(trained, copy)
    stored = sonde.load(trained.parent)
    assert [run.id for run in stored.runs] == [trained.name]
    assert set(stored.rows["run"]) == {trained.name}
    assert list(stored.broken) == [copy.name]
    assert "but the folder is" in stored.broken[copy.name]
    assert str(trained.parent) not in stored.broken[copy.name]
    assert f"left out: {copy.name} (" in capsys.readouterr().err


def test_folders_that_sonde_did_not_write_are_skipped_and_counted(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, file in (("Documents", "cv.txt"), ("extension", "manifest.json"), ("jogging", "run.json")):
        (trained.parent / name).mkdir()
        (trained.parent / name / file).write_text('{"name": "mine"}')
    stored = sonde.load(trained.parent)
    assert [run.id for run in stored.runs] == [trained.name]
    assert not stored.broken
    told = capsys.readouterr().err
    assert "3 folders in " in told
    assert "move" not in told


def test_a_run_that_lost_its_description_is_still_noticed(trained: Path) -> None:
    shutil.copytree(trained, trained.with_name("other"))
    (trained / "run.json").unlink()
    (trained.with_name("other") / "manifest.json").unlink()
    with pytest.raises(SondeError, match="is missing"):
        sonde.load(trained.parent)
