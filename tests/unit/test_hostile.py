"""Odd and hostile input: one clear line, bounded memory, nothing half-written."""

import io
import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

import sonde as package
from conftest import Sonde
from sonde.cli import app
from sonde.core.errors import SondeError, printable
from sonde.metrics.rows import SCHEMA
from sonde.store import files, index
from sonde.store.datasets import decoded
from sonde.store.files import ASIDE, aside_mark, remove_stale
from sonde.store.folder import parquet, read_trained
from sonde.store.journal import Journal
from sonde.store.parquet import parquet_size
from sonde.studies import STUDIES
from stores import forge, rename, write_run

CONFIGS = STUDIES["audit"].configs("quick", (42, 123))
ODD = "a[1]*{b,c}?"
ESCAPES = "\x1b[31mred\x1b[0m \x1b]0;title\x07\u202edrow\u202c\x9b1m\r\x00"
IMAGES = {"img": pl.Struct({"bytes": pl.Binary, "path": pl.String}), "label": pl.Int64}


def test_what_a_terminal_would_obey_is_not_printed() -> None:
    assert printable(ESCAPES) == "red drow1m"
    assert printable("ρ\tτ\n漢字 é") == "ρ\tτ\n漢字 é"


@pytest.mark.parametrize("words", [["show"], ["show", "--json"], ["audit"], ["compare"], ["verify"]])
def test_names_bring_no_control_sequences_to_a_terminal(words: list[str], tmp_path: Path) -> None:
    ids = [write_run(tmp_path, config) for config in CONFIGS]
    rename(tmp_path, ids[0], label=f"net{ESCAPES}", rule_label=f"rule{ESCAPES}", task_label=f"task{ESCAPES}")
    done = CliRunner().invoke(app, [*words, "--runs", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert not re.search("[\x00\x07\x1b\x9b\u202e]", done.output)
    if "--json" in words:
        assert sum(run["label"].count(ESCAPES) for run in json.loads(done.output)) == 2


def test_an_error_brings_no_control_sequences_to_a_terminal(sonde: Sonde) -> None:
    done = sonde("show", "--runs", "\x1b[31mred\u202e", check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("sonde: red does not exist")


def test_a_store_in_a_folder_whose_name_is_a_pattern_is_read_and_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "RUNS_TO_INDEX", 2)
    root = tmp_path / ODD / "runs"
    for config in CONFIGS[:3]:
        write_run(root, config)
    rows = package.load(root).rows
    with monkeypatch.context() as patch:
        patch.setattr("sonde.store.load.read_rows", lambda *_: pytest.fail("the index was not found"))
        assert package.load(root).rows.equals(rows)


def test_images_in_a_folder_whose_name_is_a_pattern_are_found(tmp_path: Path) -> None:
    path = tmp_path / ODD / "train.parquet"
    path.parent.mkdir()
    images = [{"bytes": b"x", "path": "p"}] * 3
    pl.DataFrame({"img": images, "label": [1, 2, 3]}, schema=IMAGES).write_parquet(path)
    assert decoded.count_images(path) == 3
    with pytest.raises(SondeError, match="row 0: the image cannot be decoded"):
        next(decoded.read_images(path))


def test_how_large_parquet_unpacks_is_known_from_its_headers() -> None:
    frame = pl.DataFrame({"text": [f"{'x' * 1000}{n}" for n in range(20_000)], "n": range(20_000)})
    contents = {}
    for compression in ("uncompressed", "zstd", "snappy"):
        buffer = io.BytesIO()
        frame.write_parquet(buffer, compression=compression)  # type: ignore[arg-type]
        contents[compression] = buffer.getvalue()
    sizes = {name: parquet_size(io.BytesIO(content)).bytes for name, content in contents.items()}
    assert len(set(sizes.values())) == 1
    assert 0.95 < sizes["zstd"] / len(contents["uncompressed"]) < 1.05
    assert sizes["zstd"] > 100 * len(contents["zstd"])


def test_headers_that_make_no_sense_are_an_error_and_nothing_worse() -> None:
    buffer = io.BytesIO()
    pl.DataFrame({"text": ["a", "b"] * 50, "n": range(100)}).write_parquet(buffer)
    content, chance, refused = buffer.getvalue(), random.Random(0), 0
    for _ in range(300):
        other = bytearray(content)
        other[chance.randrange(len(other))] = chance.randrange(256)
        cut = bytes(other[: chance.choice([len(other), chance.randrange(len(other))])])
        try:
            parquet_size(io.BytesIO(cut))
        except ValueError:
            refused += 1
    assert refused > 100


def test_files_that_unpack_to_more_than_memory_are_refused_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "UNPACKED_BYTES", 10_000_000)
    monkeypatch.setattr(decoded, "_LARGEST", 10_000_000)
    folder = tmp_path / write_run(tmp_path, CONFIGS[0])
    _, rows = read_trained(folder)
    long = rows.head(20).with_columns(reason=pl.int_range(20).cast(pl.String) + "x" * 1_000_000)
    forge(folder, "metrics.parquet", parquet(long))
    with pytest.raises(SondeError, match=r"metrics\.parquet unpacks to 0\.02 GB, which no run of Sonde's has"):
        package.load(tmp_path)
    images = [{"bytes": bytes([n]) * 1_000_000, "path": "p"} for n in range(20)]
    pl.DataFrame({"img": images, "label": [1] * 20}, schema=IMAGES).write_parquet(tmp_path / "train.parquet")
    with pytest.raises(SondeError, match=r"train\.parquet unpacks to .* more than"):
        decoded.count_images(tmp_path / "train.parquet")


@pytest.mark.slow
def test_sixty_million_rows_in_a_megabyte_are_refused_in_two_gigabytes(tmp_path: Path) -> None:
    n = 60_000_000
    values = {"run": "r", "metric": "m", "value": 1.0, "defined": True}
    columns = [pl.repeat(values.get(name), n, dtype=kind).alias(name) for name, kind in SCHEMA.items()]
    pl.select(columns).write_parquet(tmp_path / "m.parquet", compression="zstd")
    program = f"""
import resource, pathlib
from sonde.core.errors import SondeError
from sonde.metrics.rows import SCHEMA
from sonde.store.parquet import read_table
path = pathlib.Path({str(tmp_path / "m.parquet")!r})
try:
    read_table(path.read_bytes(), path, "r", SCHEMA, "")
except SondeError as error:
    print(error, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "more rows than the 12,000,000" in done.stdout
    assert int(done.stdout.split()[-1]) < 2_000_000


@pytest.mark.parametrize(
    "words",
    [
        ["run", "residual", "--seeds", "²"],
        ["run", "residual", "--seeds", "9" * 4000],
        ["run", "residual", "--set", f"epochs={'9' * 4000}"],
        ["run", "residual", "--set", f"epochs={'9' * 5000}"],
        ["run", "residual", "--set", f"probes.names={'[' * 100_000}"],
        ["audit", "--only", f"seed={'[' * 100_000}"],
        ["show", "--runs", "n" * 300],
        ["run", "residual", "--no-figures", "--runs", "n" * 300],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_odd_words_are_one_line(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert done.exit_code != 0
    assert isinstance(done.exception, SondeError), done.exception
    assert "\n" not in str(done.exception)
    assert [path.name for path in tmp_path.iterdir() if path.name != "out"] == []


@pytest.mark.parametrize("words", [["report", "--no-figures"], ["figures", "audit"], ["export"]], ids=str)
def test_what_is_written_under_a_name_of_three_hundred_characters_is_refused_in_one_line(
    words: list[str], tmp_path: Path, sonde: Sonde
) -> None:
    for config in STUDIES["audit"].configs("quick", (42,)):
        write_run(tmp_path / "runs", config)
    done = sonde(*words, "--out", "n" * 300, check=False)
    assert done.returncode == 2
    assert "longer than this file system allows (255 bytes): choose a shorter one" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_seed_in_a_file_is_written_in_plain_digits(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "cifar10"
    folder.mkdir(parents=True)
    for text in ('{"²": {}}', json.dumps({"9" * 4000: {}}), "[" * 100_000):
        (folder / "results_cifar10.json").write_text(text)
        done = CliRunner().invoke(app, ["figures", "cifar10", "--from", str(tmp_path)])
        assert isinstance(done.exception, SondeError), done.exception


def test_a_name_of_three_hundred_characters_is_refused_by_name(tmp_path: Path) -> None:
    about = {"label": "n", "model": "Net", "parameters": 3}
    with pytest.raises(SondeError, match="longer than this file system allows"):
        Journal(tmp_path, "n" * 300, about, {})
    assert list(tmp_path.iterdir()) == []


def test_a_runs_folder_that_is_removed_and_a_limit_of_file_sizes_name_a_remedy(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(SondeError, match=r"gone is gone: it was removed while the command ran"):
        files.write(gone / "manifest.json", b"")
    program = (
        "import resource, pathlib, sys\n"
        "from sonde.store import files\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "files.write(pathlib.Path(sys.argv[1]), b'x' * 5000)"
    )
    done = subprocess.run([sys.executable, "-B", "-c", program, str(tmp_path / "f")], capture_output=True, text=True)
    assert "would be larger than a file may be here: raise the limit (`ulimit -f unlimited`)" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_aside_is_swept_and_nothing_else(tmp_path: Path) -> None:
    program = "from sonde.store.files import aside_mark; print(aside_mark())"
    dead = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    left = tmp_path / f"{ASIDE}{dead.stdout.strip()}run"
    left.mkdir()
    (left / "run.json").write_text("{}")
    kept = [tmp_path / f"{ASIDE}{aside_mark()}mine", tmp_path / f"{ASIDE}other", tmp_path / "run"]
    for path in kept:
        path.write_text("")
    remove_stale(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    shutil.rmtree(tmp_path)
    remove_stale(tmp_path)
