"""Whatever bit of a store is flipped: it is noticed, or nothing that is read has changed."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

import sonde
from conftest import tiny_config
from sonde.cli import app
from sonde.core.errors import SondeError
from sonde.metrics.rows import WATCHED
from sonde.store import index, journal
from sonde.store.files import Place, place
from sonde.store.folder import read_tensors
from sonde.store.journal import Journal
from sonde.store.load import verify
from sonde.store.schemas import BlockOfIndex
from sonde.studies import STUDIES
from stores import at, forge, memory, unpack, write_run


def watched(root: Path, name: str, steps: int, *, close: bool) -> None:
    """A watched run with parts and, unless it was closed, a journal."""
    about = {"label": name, "model": "Net", "parameters": 3}
    writing = Journal(place(str(root)), name, about, {"started": "now"})
    for step in range(steps):
        rows = [(name, None, step, layer, "out_rms", 1.5 + step, True, None, 4, f"layer {layer}") for layer in range(3)]
        writing.append(pl.DataFrame(rows, schema=WATCHED, orient="row"), step)
    writing.write_facts({"modules": [{"name": "layer 0", "calls": 2}]})
    if close:
        writing.close("complete", steps)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Ended runs in an index, an unfinished one, a watched one, and one that is being watched."""
    root = tmp_path_factory.mktemp("store") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "RUNS_TO_INDEX", 2)
        patch.setattr(journal, "PART", 20)
        for seed in (1, 2):
            sonde.train(tiny_config(seed=seed, epochs=1), runs=root)
        sonde.train(tiny_config(seed=3), runs=root, should_stop=lambda: True)
        watched(root, "ended", 12, close=True)
        watched(root, "running", 9, close=False)
        sonde.load(root)
        yield root


def read(root: Path) -> list[Any]:
    """Everything that any reader can be shown."""
    stored = sonde.load(root)
    if stored.broken:  # left out, and said
        raise SondeError("; ".join(stored.broken.values()))
    found: list[Any] = [stored.rows, stored.runs, stored.watched, [run.facts for run in stored.watched]]
    for run in stored.runs:
        folder = run.path
        found += [read_tensors(folder, name) for name in run.manifest.files if name != "metrics"]
    return found


def same(ours: list[Any], theirs: list[Any]) -> bool:
    (rows, *rest), (others, *remaining) = ours, theirs
    return bool(rows.equals(others)) and rest == remaining


@contextmanager
def flipped(file: Path, bit: int, *, time_kept: bool, cut: bool = False) -> Iterator[None]:
    """Another bit or a shorter file, under the old time of change or a new one, until the file is as it was."""
    content, known = file.read_bytes(), file.stat()
    kept = {path: path.read_bytes() for path in file.parents[1].glob(f"{index.INDEX_FOLDER}/*")}
    other = bytearray(content)
    other[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content[: bit // 8] if cut else other)
    if time_kept:
        os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns))
    yield
    for path in file.parents[1].glob(f"{index.INDEX_FOLDER}/*"):
        path.unlink()
    for path, before in kept.items():
        path.write_bytes(before)
    file.write_bytes(content)
    os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns))


def flips(root: Path, many: int) -> None:
    expected = read(root)
    chance = random.Random(14)
    files = sorted(file for file in root.rglob("*") if file.is_file() and ".locks" not in file.parts)
    assert {"index.json", "journal-0002.chunks", "facts-1.json"} <= {file.name for file in files}
    noticed = 0
    for number in range(many):
        file = files[number % len(files)]
        bit, time_kept = chance.randrange(8 * file.stat().st_size), number % 2 == 0
        cut = number % 5 == 4 and file.suffix != ".chunks"  # a journal that ends early was being written
        with flipped(file, bit, time_kept=time_kept, cut=cut):
            assert verify(root).wrong, f"bit {bit} of {file} was not noticed by verify ({cut=})"
            try:
                shown = read(root)
            except SondeError:
                noticed += 1
            else:
                assert same(shown, expected), f"bit {bit} of {file} is another number"
    assert same(read(root), expected)
    assert noticed > many // 3


@pytest.mark.parametrize("many", [200, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_every_flipped_bit_is_noticed_or_without_effect(whole: Path, many: int) -> None:
    flips(whole, many)


def test_a_whole_store_is_verified_below_a_folder_and_a_url() -> None:
    with memory():
        store = at("memory://bucket/runs")
        for config in STUDIES["audit"].configs("quick", (42,)):
            write_run(store, config)
        done = CliRunner().invoke(app, ["verify", "--runs", str(store)])
        assert done.exit_code == 0
        assert "6 runs in memory://bucket/runs: everything is what was stored (18 files" in done.output
        file = store / config.id / "metrics.parquet"
        file.put(file.read_bytes()[:-1])
        done = CliRunner().invoke(app, ["verify", "--runs", str(store)])
        assert done.exit_code == 1
        assert f"wrong: {config.id}: {file} is not what was stored" in done.output
        assert "1 wrong" in done.output


def test_verify_names_every_kind_of_wrong_and_what_is_left_over(tmp_path: Path) -> None:
    ids = [write_run(tmp_path, config) for config in STUDIES["audit"].configs("quick", (42,))]
    folders = [tmp_path / id for id in ids]
    (tmp_path / ids[0] / "metrics.parquet").unlink()
    forge(folders[1], "metrics.parquet", b"PAR1")
    forge(folders[2], "run.json", (tmp_path / ids[3] / "run.json").read_bytes())
    (tmp_path / ids[4] / "metrics-3.parquet").write_bytes(b"")
    (tmp_path / ".aside-1-x").write_bytes(b"")
    found = verify(tmp_path)
    said = {run: " ".join(words) for run, words in found.wrong.items()}
    assert "is missing, though manifest.json names it" in said[ids[0]]
    assert "cannot be read" in said[ids[1]]
    assert "but the folder is" in said[ids[2]]
    assert set(said) == set(ids[:3])
    assert [Path(path).name for path in found.left_over] == ["metrics-3.parquet", ".aside-1-x"]
    assert found.runs == 6


def test_an_index_that_tells_something_else_than_the_runs_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "RUNS_TO_INDEX", 2)
    ids = [write_run(tmp_path, config) for config in STUDIES["audit"].configs("quick", (42,))]
    written = index._write_block

    def other(folder: Place, rows: pl.DataFrame) -> BlockOfIndex:
        return written(folder, rows.with_columns(pl.col("value") + (pl.col("run") == ids[0])))

    monkeypatch.setattr(index, "_write_block", other)
    sonde.load(tmp_path)
    found = verify(tmp_path)
    assert found.indexed == 5
    assert found.wrong == {
        ".index": [
            f"its copy of {ids[0]} is not what the run has",
            f"it can be rebuilt: remove {tmp_path / '.index'}, and the next reader writes it anew",
        ]
    }


@pytest.mark.parametrize("study", ["residual", "audit"])
def test_stores_of_0_1_0_are_readable_and_said_not_to_be_verifiable(study: str, tmp_path: Path) -> None:
    root = unpack(study, tmp_path)
    found = verify(root)
    assert not found.wrong
    assert len(found.without_checksums) == found.runs
    done = CliRunner().invoke(app, ["verify", "--runs", str(root)])
    assert done.exit_code == 0
    assert "stored without checksums, by 0.1.0, so bytes cannot be verified" in done.output
