"""Watched runs in a store: written as they come, read beside trained ones, and never taken for one of those."""

import errno
import json
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn

from conftest import Sonde, tiny_config
from sonde.core import errors
from sonde.core.errors import SondeError
from sonde.metrics.rows import SCHEMA
from sonde.observe.watch import watch
from sonde.store import journal as journals
from sonde.store.files import place
from sonde.store.journal import Journal, folder_name, read_watched
from sonde.store.load import load, verify
from sonde.training.train import train
from stores import some_rows
from watch_programs import plain_mlp, vectors


def made(where: Path | str, name: str = "net") -> Journal:
    return Journal(place(str(where)), name, {"label": name, "model": "Net", "parameters": 3}, {"started": "now"})


def watched(runs: Path, steps: int = 12, name: str | None = None) -> str:
    torch.manual_seed(0)
    model, criterion = plain_mlp(), nn.CrossEntropyLoss()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimiser, loss=criterion, runs=runs, name=name) as watching:
        for step in range(steps):
            x, y = vectors(step)
            optimiser.zero_grad()
            criterion(model(x), y).backward()
            optimiser.step()
    return watching.id


@pytest.mark.parametrize("where", ["local", "memory"])
def test_rows_are_read_back_in_order_while_a_run_is_written_and_after(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "PART", 20)
    monkeypatch.setattr(journals, "PAUSE", 0.0)
    root = tmp_path if where == "local" else f"memory://watched-{tmp_path.name}"
    journal = made(root)
    wanted = []
    for step in range(15):
        journal.append(some_rows(step), step)
        wanted.append(some_rows(step))
        manifest, found = read_watched(journal.path)
        assert found.equals(pl.concat(wanted))
        assert manifest.state == "unfinished"
    assert journals.parts_of(manifest) == 2
    journal.close("complete", 15)
    manifest, found = read_watched(journal.path)
    assert found.equals(pl.concat(wanted))
    assert (manifest.state, manifest.step) == ("complete", 15)


def test_a_torn_chunk_is_as_if_it_had_never_been(tmp_path: Path) -> None:
    journal = made(tmp_path)
    journal.append(some_rows(0), 0)
    journal.append(some_rows(1), 1)
    file = tmp_path / "net" / "journal-0001.chunks"
    whole = file.read_bytes()
    first = journals._chunk(some_rows(0))
    for cut in range(len(first), len(whole)):
        file.write_bytes(whole[:cut])
        assert read_watched(journal.path)[1].equals(some_rows(0))


def test_a_flipped_bit_anywhere_in_the_journal_is_refused_with_a_way_to_keep_the_rest(tmp_path: Path) -> None:
    journal = made(tmp_path)
    journal.append(some_rows(0), 0)
    journal.append(some_rows(1), 1)
    file = tmp_path / "net" / "journal-0001.chunks"
    whole, first = file.read_bytes(), len(journals._chunk(some_rows(0)))
    for at in range(0, len(whole), 7):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(SondeError, match=f"damaged from byte {0 if at < first else first} on: `truncate"):
            read_watched(journal.path)
    file.write_bytes(whole[:first])
    assert read_watched(journal.path)[1].equals(some_rows(0))


@pytest.mark.parametrize("harm", ["deleted", "emptied", "cut"])
def test_a_journal_that_lost_rows_is_noticed(harm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = made(tmp_path)
    for step in range(3):
        journal.append(some_rows(step), step)
    journal.sync()
    journal.append(some_rows(3), 3)  # as a process that was killed leaves it
    file = tmp_path / "net" / "journal-0001.chunks"
    first = len(journals._chunk(some_rows(0)))
    assert verify(tmp_path).wrong == {}
    whole = file.read_bytes()
    file.write_bytes(whole[: 3 * first])  # what came after the last sync is not known to the manifest
    assert verify(tmp_path).wrong == {}
    file.write_bytes(whole[:first] if harm == "cut" else b"")
    if harm == "deleted":
        file.unlink()
    assert list(verify(tmp_path).wrong) == ["net"]
    capsys.readouterr()
    left = load(tmp_path)
    assert left.rows["step"].unique().to_list() == ([0] if harm == "cut" else [])
    assert str(file) in capsys.readouterr().err + " ".join(errors._told)


def test_the_first_rows_of_a_journal_are_known_to_the_manifest_at_once(tmp_path: Path) -> None:
    journal = made(tmp_path)
    journal.append(some_rows(0), 0)
    (tmp_path / "net" / "journal-0001.chunks").unlink()
    assert list(verify(tmp_path).wrong) == ["net"]


def test_a_folded_journal_is_no_longer_asked_for(tmp_path: Path) -> None:
    journal = made(tmp_path)
    journal.append(some_rows(0), 0)
    journal.close("complete", 1)
    found = verify(tmp_path)
    assert (found.wrong, found.left_over) == ({}, [])
    assert not any(name.startswith("journal") for name in journal.manifest.checksums or {})


def test_a_fold_that_fails_leaves_every_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "PART", 1)
    journal = made(tmp_path)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(journals, "parquet", full)
        journal.append(some_rows(0), 0)
        assert read_watched(journal.path)[1].equals(some_rows(0))
    journal.append(some_rows(1), 1)
    journal.close("complete", 2)
    assert read_watched(journal.path)[1].equals(pl.concat([some_rows(0), some_rows(1)]))


def test_a_run_of_the_same_name_gets_a_number(tmp_path: Path) -> None:
    assert [made(tmp_path).id for _ in range(3)] == ["net", "net-2", "net-3"]


@pytest.mark.parametrize(
    ("text", "name"),
    [("My net / v2", "My-net-v2"), ("..", "watched"), ("α", "watched"), ("a.b_c-d", "a.b_c-d")],
)
def test_a_name_becomes_a_folder(text: str, name: str) -> None:
    assert folder_name(text) == name


def test_load_knows_watched_runs_beside_trained_ones(tmp_path: Path) -> None:
    train(tiny_config(), runs=tmp_path)
    before = load(tmp_path)
    assert before.rows.schema == SCHEMA
    assert not before.watched
    id = watched(tmp_path, name="mine")
    stored = load(tmp_path)
    assert [run.id for run in stored.runs] == [run.id for run in before.runs]
    assert [(run.id, run.label) for run in stored.watched] == [(id, "mine")]
    assert stored.rows.filter(pl.col("run") != id).select(before.rows.columns).equals(before.rows)
    mine = stored.rows.filter(pl.col("run") == id)
    assert mine.filter(module="0", metric="out_rms")["step"].to_list() == list(range(10))
    losses = load(tmp_path, pl.col("metric") == "loss").rows
    assert set(losses["metric"]) == {"loss"}


def test_a_watched_run_is_left_out_by_name_where_a_configuration_is_needed(tmp_path: Path, sonde: Sonde) -> None:
    for seed in (1, 2):
        train(tiny_config(seed=seed), runs=tmp_path / "runs")
    id = watched(tmp_path / "runs")
    told = f"left out: {id} (it was watched: it has no configuration)"
    audited = sonde("audit")
    assert told in audited.stderr
    assert id not in audited.stdout
    assert "nothing to compare" in sonde("compare", "--metric", "test_loss", check=False).stderr
    assert sonde("figures", "residual", check=False).returncode == 2
    assert id in sonde("show").stdout


def test_a_store_of_watched_runs_alone_says_what_it_holds(tmp_path: Path, sonde: Sonde) -> None:
    id = watched(tmp_path / "runs")
    for command in (["audit"], ["compare"]):
        told = sonde(*command, check=False)
        assert told.returncode == 2
        assert id in told.stderr
    assert "only watched runs" in sonde("figures", "residual", check=False).stderr


def test_show_lists_watched_runs(tmp_path: Path, sonde: Sonde) -> None:
    id = watched(tmp_path / "runs")
    shown = sonde("show").stdout
    assert "1 watched run in runs" in shown
    assert id in shown
    (known,) = json.loads(sonde("show", "--json").stdout)
    assert (known["id"], known["kind"], known["step"], known["modules"]) == (id, "watched", 12, 6)
    assert known["metrics"]["loss"] > 0
