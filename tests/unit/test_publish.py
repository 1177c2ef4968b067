"""A store to hand round: the same rows, no weights, nothing of the machine's owner, and vouched for by checksums."""

import json
from dataclasses import replace
from pathlib import Path

import polars.testing

from conftest import Sonde, tiny_config
from sonde.store.folder import put_manifest, read_manifest
from sonde.store.listing import publish
from sonde.store.load import load, verify
from sonde.training.train import train


def published(tmp_path: Path) -> tuple[Path, Path, str]:
    runs, out = tmp_path / "runs", tmp_path / "out"
    out.mkdir()
    config = tiny_config(epochs=2)
    train(config, runs=runs)
    written, left_out = publish(runs, out, [config.id])
    assert (written, left_out) == ([config.id], {})
    return runs, out, config.id


def test_the_rows_are_the_same_and_the_weights_are_not_there(tmp_path: Path) -> None:
    runs, out, id = published(tmp_path)
    polars.testing.assert_frame_equal(load(out).rows, load(runs).rows)
    assert load(out).runs[0].config == load(runs).runs[0].config
    assert sorted(path.name for path in (out / id).iterdir()) == [
        "manifest.json",
        "metrics.parquet",
        "run.json",
    ]


def test_what_was_handed_round_is_vouched_for(tmp_path: Path) -> None:
    _, out, id = published(tmp_path)
    assert not verify(out).wrong
    path = out / id / "metrics.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert list(verify(out).wrong) == [id]


def test_it_names_no_host_and_no_command(tmp_path: Path) -> None:
    runs, out, id = published(tmp_path)
    whole, kept = (json.loads((at / id / "manifest.json").read_text()) for at in (runs, out))
    assert "host" in whole["sessions"][0]["environment"]["machine"]
    (session,) = kept["sessions"]
    assert "command" not in session["environment"]
    assert session["environment"]["machine"].keys() == {"system", "processor", "cores"}
    assert session["environment"]["packages"] == whole["sessions"][0]["environment"]["packages"]


def test_a_published_run_is_not_trained_again(tmp_path: Path) -> None:
    _, out, id = published(tmp_path)
    before = (out / id / "manifest.json").read_bytes()
    assert train(tiny_config(epochs=2), runs=out).state == "complete"
    assert (out / id / "manifest.json").read_bytes() == before


def test_a_run_that_has_not_ended_is_left_out_and_said(tmp_path: Path) -> None:
    runs, _, id = published(tmp_path)
    folder = runs / id
    put_manifest(folder, replace(read_manifest(folder), state="unfinished"))
    assert publish(runs, tmp_path / "again", [id]) == ([], {id: "it has not come to its end"})


def test_export_writes_a_store_that_commands_read_and_refuses_a_folder_in_use(tmp_path: Path, sonde: Sonde) -> None:
    config = tiny_config(epochs=2)
    train(config, runs=tmp_path / "runs")
    said = sonde("export", "--layout", "runs", "--out", "shared").stdout
    assert "1 run in shared" in said
    assert config.id in sonde("show", "--runs", "shared", "--json").stdout
    again = sonde("export", "--layout", "runs", "--out", "shared", check=False)
    assert again.returncode != 0
    assert "is not empty" in again.stderr
