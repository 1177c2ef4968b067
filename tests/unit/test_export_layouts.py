"""Exported runs, read back with each tool's own reader: the values, the steps, the configuration, the reasons."""

import json
import math
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from test_watch_store import watched

from conftest import Sonde
from processes import wait_for
from sonde.analysis.runs import frame
from sonde.show.exporters import LAYOUTS, series_name, writer
from sonde.store.load import load
from sonde.store.run import Runs
from stores import EPOCHS, Key, Value, config, run, store, write

WHY = "every credit or gradient is zero"
TINY, HUGE = 1e-50, 1e200
VALUES: dict[Key, Value] = {
    ("test_acc", 0, None): 0.1,
    ("test_acc", EPOCHS, None): 1 / 3,
    ("grad_norm", 0, 1): TINY,
    ("grad_norm", EPOCHS, 1): HUGE,
    ("credit_cosine/bp", 0, 2): WHY,
    ("credit_cosine/bp", EPOCHS, 2): 0.25,
    ("nudge[0.01]", 0, 0): -0.5,
    ("nudge_0.01_", 0, 0): 0.75,  # another metric, though MLflow allows no brackets
    ("_step", EPOCHS, None): 5.0,
}
COMMAS = 'a, "b"\n<c>'


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trained runs that differ in width, one of them diverged, and a watched one."""
    folder = tmp_path_factory.mktemp("store") / "runs"
    trained = [
        run(config("dfa", 1, model__d=32, rule__note=COMMAS), VALUES),
        run(config("dfa", 1, model__d=64, rule__note=COMMAS), VALUES, state="diverged", epoch=3),
    ]
    write(store(*trained), folder)
    watched(folder, steps=3)
    return folder


@pytest.fixture(scope="module")
def stored(runs: Path) -> Runs:
    return load(runs)


def export(layout: str, stored: Runs, out: Path) -> list[Path]:
    return writer(layout)(stored, out, lambda done, total: None)


def series(stored: Runs, id: str) -> dict[tuple[str, int], tuple[float, str | None]]:
    """By name and step, what a run has in its store."""
    rows = stored.rows.filter(pl.col("run") == id).iter_rows(named=True)
    return {
        (series_name(row["metric"], row["layer"], row["module"]), row["step"]): (row["value"], row["reason"])
        for row in rows
    }


def ids(stored: Runs) -> list[str]:
    return [one.id for one in (*stored.runs, *stored.watched)]


@pytest.mark.parametrize("layout", ["csv", "parquet"])
def test_tables_hold_every_row_and_every_configuration(layout: str, stored: Runs, tmp_path: Path) -> None:
    rows, lines = export(layout, stored, tmp_path)
    if layout == "csv":
        wanted = frame(stored)
        read = pl.read_csv(rows, schema=wanted.schema)
        of_runs = pl.read_csv(lines)
    else:
        read, of_runs = pl.read_parquet(rows), pl.read_parquet(lines)
    assert read.equals(frame(stored))
    assert of_runs["run"].to_list() == ids(stored)
    assert of_runs["model.d"].to_list() == [32, 64, None]
    assert of_runs["rule.note"][0] == COMMAS
    assert of_runs["parameters"].drop_nulls().to_list() == [stored.watched[0].about["parameters"]]


def test_a_run_that_cannot_be_read_blocks_no_other(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = load(runs, metrics=())
    broken = stored.runs[0]
    kept = (broken.path / "metrics.parquet").read_bytes() if (broken.path / "metrics.parquet").exists() else b""
    (table,) = broken.path.glob("*.parquet")
    kept = table.read_bytes()
    try:
        table.write_bytes(kept[:-1] + b"x")
        rows, _ = export("parquet", stored, tmp_path)
    finally:
        table.write_bytes(kept)
    assert set(pl.read_parquet(rows)["run"]) == set(ids(stored)[1:])
    assert f"left out: {broken.id}" in capsys.readouterr().err


def test_tensorboard_reads_what_was_exported(stored: Runs, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'sonde[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
    from tensorboard.util.tensor_util import make_ndarray

    folders = export("tensorboard", stored, tmp_path)
    assert [folder.name for folder in folders] == ids(stored)
    for one, folder in zip((*stored.runs, *stored.watched), folders, strict=True):
        read = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        scalars = {(tag, e.step): e.value for tag in read.Tags()["scalars"] for e in read.Scalars(tag)}
        texts = {
            (tag.removeprefix("undefined/"), event.step): make_ndarray(event.tensor_proto).item().decode()
            for tag in read.Tags()["tensors"]
            if tag.startswith("undefined/")
            for event in read.Tensors(tag)
        }
        wanted = series(stored, one.id)
        assert scalars.keys() | texts.keys() == wanted.keys()
        for key, (value, reason) in wanted.items():
            if reason is not None:
                assert texts[key] == reason
            elif value in (TINY, HUGE):
                assert texts[key] == f"{value!r} does not fit into the 32 bits of TensorBoard's scalars"
            else:
                assert scalars[key] == np.float32(value)
        content = read.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        hparams = HParamsPluginData.FromString(content).session_start_info.hparams
        if one in stored.runs:
            assert hparams["model.d"].number_value == one.config["model"]["d"]
            assert hparams["rule.note"].string_value == COMMAS
        assert hparams["sonde.state"].string_value == one.manifest.state


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow and SQLAlchemy, about each other
def test_mlflow_reads_what_was_exported(stored: Runs, tmp_path: Path) -> None:
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package, reason="pip install 'sonde[mlflow]'")
    (path,) = export("mlflow", stored, tmp_path)
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{path}")
    experiment = client.get_experiment_by_name("sonde")
    read = {one.info.run_name: one for one in client.search_runs([experiment.experiment_id])}
    assert read.keys() == set(ids(stored))
    for one in (*stored.runs, *stored.watched):
        mine = read[one.id]
        names = {key.removeprefix("sonde.name."): series for key, series in mine.data.tags.items() if ".name." in key}
        found = {
            (names.get(name, name), metric.step): metric.value
            for name in mine.data.metrics
            for metric in client.get_metric_history(mine.info.run_id, name)
        }
        wanted = series(stored, one.id)
        assert found.keys() == wanted.keys()
        for key, (value, reason) in wanted.items():
            assert math.isnan(found[key]) if reason is not None else found[key] == value
        assert mine.data.tags["sonde.state"] == one.manifest.state
    complete, diverged = (read[one.id] for one in stored.runs)
    assert (complete.info.status, diverged.info.status) == ("FINISHED", "FAILED")
    assert complete.data.params["model.d"] == "32"
    assert complete.data.params["rule.note"] == COMMAS
    assert complete.data.tags["undefined.credit_cosine/bp/layer_2"] == f"{WHY} (step 0)"
    client._tracking_client.store.engine.dispose()


def records(path: Path) -> Iterator[Any]:
    """W&B's file is a log of LevelDB's format: pieces in blocks of 32 KiB, each with checksum, length and kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        if at + 7 + length > len(data):
            return  # it is being written
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield Record.FromString(whole)
            whole = b""


def test_wandb_wrote_what_was_exported(stored: Runs, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="pip install 'sonde[wandb]'")
    folders = export("wandb", stored, tmp_path)
    for one, folder in zip((*stored.runs, *stored.watched), folders, strict=True):
        (path,) = folder.glob("run-*.wandb")
        wait_for(lambda path=path: any(record.HasField("exit") for record in records(path)))  # W&B writes by itself
        read = list(records(path))
        (described,) = (record.run for record in read if record.HasField("run"))
        assert (described.run_id, described.project) == (one.id, "sonde")
        settings = {item.key: json.loads(item.value_json) for item in described.config.update}
        assert settings["sonde"]["state"] == one.manifest.state
        if one in stored.runs:
            assert settings["model"]["d"] == one.config["model"]["d"]
            assert settings["rule"]["note"] == COMMAS
        found: dict[tuple[str, int], Any] = {}
        for record in (record.history for record in read if record.HasField("history")):
            values = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.item}
            found |= {
                (name.removeprefix("metric/"), values["_step"]): value
                for name, value in values.items()
                if name == "metric/_step" or (name[0] != "_" and name != "epoch")
            }
        wanted = series(stored, one.id)
        for (name, step), (value, reason) in wanted.items():
            place = (name, step) if reason is None else (f"undefined/{name}", step)
            assert found.pop(place) == (value if reason is None else reason), place
        assert not found
        (ended,) = (record.exit.exit_code for record in read if record.HasField("exit"))
        assert ended == (one.manifest.state == "diverged")


@pytest.mark.parametrize("layout", [name for name, layout in LAYOUTS.items() if layout.extra])
def test_a_tool_that_is_not_installed_is_named_with_the_line_that_installs_it(
    layout: str, runs: Path, sonde: Sonde, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = f"sonde.show.exporters.{LAYOUTS[layout].written_by.split('.')[0]}"
    monkeypatch.delitem(sys.modules, here, raising=False)
    for module in [name for name in sys.modules if name.split(".")[0] == layout]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, layout, None)
    told = sonde("export", "--runs", str(runs), "--layout", layout, check=False)
    assert told.returncode == 2
    assert f"--layout {layout} needs the extra {LAYOUTS[layout].extra}, and " in told.stderr
    assert f"pip install 'sonde[{LAYOUTS[layout].extra}]'" in told.stderr


def test_the_command_says_what_it_wrote_and_how_it_is_opened(runs: Path, sonde: Sonde, tmp_path: Path) -> None:
    told = sonde("export", "--runs", str(runs), "--layout", "csv", "--only", "model.d=32", "--out", "mine")
    assert told.stdout.splitlines() == [
        "1 run in mine/rows.csv and mine/runs.csv",
        'open with: polars.read_csv("mine/rows.csv")',
    ]
    assert pl.read_csv(tmp_path / "mine" / "runs.csv")["model.d"].to_list() == [32]


def test_what_belongs_to_studies_is_refused_without_one(runs: Path, sonde: Sonde) -> None:
    told = sonde("export", "--runs", str(runs), "--layout", "csv", "--seeds", "1", check=False)
    assert "add --study NAME, or use --only" in told.stderr
    told = sonde("export", "--runs", str(runs), "--layout", "cvs", check=False)
    assert "unknown layout 'cvs': did you mean 'csv'?" in told.stderr
