"""A store that somebody sent is data: it runs nothing, removes nothing, and takes the memory that its bytes explain."""

import csv
import io
import json
import math
import os
import shutil
import struct
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import sonde as package
from conftest import tiny_config
from sonde.cli import app
from sonde.config import stored as stored_configs
from sonde.config import to_tree
from sonde.core.errors import SondeError, one_line
from sonde.core.run_ids import config_digest, run_id
from sonde.metrics.rows import SCHEMA
from sonde.show.live.store_poller import PageState, StoreFollower
from sonde.store import index
from sonde.store.files import ASIDE, seal, set_aside
from sonde.store.folder import (
    append_log,
    clean_up,
    commit,
    parquet,
    put_manifest,
    read_manifest,
    read_trained,
    recipe_key,
)
from sonde.store.journal import Journal, _chunk
from sonde.store.load import load, verify
from sonde.store.lock import hold
from sonde.store.parquet import parquet_size
from sonde.store.run import open_run
from sonde.store.schemas import checksum
from sonde.studies import STUDIES
from sonde.studies.study import gather
from stores import forge, rename, some_rows, write_run

CONFIGS = STUDIES["audit"].configs("quick", (42,))
RULES = STUDIES["rules"].configs("quick", (42,))
GUESTS = Path(__file__).parents[1] / "plugin_files"


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


# Code.


@pytest.fixture
def payload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file and module that leaves a mark when it is run; fails where it was."""
    mark, file = tmp_path / "mark", tmp_path / "code" / "sonde_payload.py"
    file.parent.mkdir()
    leave = f"open({str(mark)!r}, 'w').close()"
    file.write_text(f"{leave}\ndef go(*a, **k):\n    {leave}\n")
    monkeypatch.syspath_prepend(file.parent)
    yield file
    assert not mark.exists(), "code that a store names was run"
    assert "sonde_payload" not in sys.modules


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


def with_payloads(payload: Path) -> Iterator[dict[str, Any]]:
    """Trees with code in every field: the option itself, a source, a probe's name."""
    for config in (CONFIGS[1], RULES[0]):
        tree = to_tree(config)
        for named in (f"{payload}:go", "sonde_payload:go", "timeit:timeit"):
            for path in places(tree):
                spoiled = json.loads(json.dumps(tree))
                at = spoiled
                for key in path[:-1]:
                    at = at[key]
                at[path[-1]] = named
                yield spoiled
            for part in ("model", "rule", "task", "optimiser"):
                for stamp in ("", "@1f2e3d4c5b6a"):
                    more = {"source": named + stamp, "stmt": "import sonde_payload", "number": 1}
                    yield tree | {part: tree[part] | more}
            yield tree | {"optimiser": tree["optimiser"] | {"name": named}}
            yield tree | {"probes": tree["probes"] | {"names": ["loss", named], "costly": [f"{named}@12"]}}


def test_the_reader_of_stored_configs_takes_no_code(payload: Path) -> None:
    refused = 0
    for tree in with_payloads(payload):
        try:
            stored_configs.read(tree)
        except SondeError:
            refused += 1
    assert refused > 200
    for config in (*CONFIGS, *RULES, tiny_config()):
        assert stored_configs.read(to_tree(config)).digest == config.digest


@pytest.mark.filterwarnings("default")
def test_no_reading_command_runs_what_a_configuration_names(payload: Path, tmp_path: Path) -> None:
    root, out = tmp_path / "runs", tmp_path / "out"
    for config in (*CONFIGS, *RULES):
        write_run(root, config)
    made = 0
    for number, tree in enumerate(with_payloads(payload)):
        try:
            id = run_id(tree)
        except TypeError:
            continue
        if "/" in id or (root / id).exists() or (number % 7 and "source" not in str(tree)):
            continue  # every field stands there under one of the names
        folder = root / write_run(root, CONFIGS[1], tree=tree)
        (folder / "sonde_payload.py").write_bytes(payload.read_bytes())
        made += 1
    assert made > 80
    for words in (
        *(["show"], ["show", "--json"], ["audit"], ["compare"], ["recovery"], ["diagnose"], ["verify"]),
        *(["report", "--no-figures", "--out", f"{out}/r.html"], ["explain", "bp"]),
        *(["export", "--layout", layout, "--out", f"{out}/{layout}"] for layout in ("csv", "parquet", "runs", "paper")),
    ):
        done = invoke(*words, *([] if words[0] == "explain" else ["--runs", str(root)]))
        assert done.exception is None or isinstance(done.exception, SondeError | SystemExit), words
    for id in sorted(path.parent.name for path in root.glob("*/sonde_payload.py")):
        done = invoke("recompute", id, "--runs", str(root))
        assert isinstance(done.exception, SondeError | SystemExit)
    stored = package.load(root)
    assert stored.frame().height
    assert stored._repr_html_()
    follower, page = StoreFollower(root), PageState(str(root), "live")
    follower.refresh()
    page.update_findings(follower.stored())
    page.build(follower.stored(), follower.stamps)


def test_a_plugin_is_needed_by_its_name_and_its_content(tmp_path: Path, payload: Path) -> None:
    tree = to_tree(replace(tiny_config(), task=package.plugin("task", f"{GUESTS / 'moons.py'}:moons")))
    stored_configs.read(tree)  # handed over in this program
    source = tree["task"]["source"]
    other = tree | {"task": tree["task"] | {"source": f"{source[:-1]}{'0' if source[-1] != '0' else '1'}"}}
    with pytest.raises(SondeError, match=r"its task is from outside .*: --task path/to/moons\.py:moons"):
        stored_configs.read(other)
    with pytest.raises(SondeError, match=r"but the run was made with moons\.py:moons@"):
        stored_configs.name_again(other, "task", f"{GUESTS / 'moons.py'}:moons")
    changed = tree | {"task": tree["task"] | {"name": "go", "source": "sonde_payload.py:go@000000000000"}}
    with pytest.raises(SondeError, match="name the file with that content"):
        stored_configs.name_again(changed, "task", f"{payload}:go")  # refused before the file is run
    with pytest.raises(SondeError, match="one of Sonde's own"):
        stored_configs.name_again(tree, "rule", f"{payload}:go")


def test_recompute_takes_a_plugin_from_the_command_line_only(tmp_path: Path, sonde_process: Any) -> None:
    shutil.copy(GUESTS / "signs.py", tmp_path)
    np.savez(
        tmp_path / "data.npz",
        x=np.random.default_rng(0).normal(size=(60, 8)).astype("f4"),
        y=np.arange(60) % 3,
    )
    few = ["--model", "plain_mlp", "--epochs", "1", *(f"--set={one}" for one in ("model.d=8", "model.L=2"))]
    sonde_process("train", "--rule", "signs.py:Signs", "--task", "data.npz", *few, "--quiet")
    (run,) = [path.name for path in (tmp_path / "runs").iterdir() if path.name[0] != "."]
    without = sonde_process("recompute", run, check=False)
    assert without.returncode == 2
    assert "--task path/to/data.npz" in without.stderr
    assert without.stderr.count("\n") == 1
    half = json.loads(sonde_process("recompute", run, "--task", "data.npz", "--json").stdout)
    whole = sonde_process("recompute", run, "--task", "data.npz", "--rule", "signs.py:Signs", "--json")
    verdicts = [
        {line["metric"]: line["verdict"] for line in found["metrics"]} for found in (half, json.loads(whole.stdout))
    ]
    assert [one["credit_cosine"] for one in verdicts] == ["not recomputed", "agrees"]
    (tmp_path / "signs.py").write_text((tmp_path / "signs.py").read_text() + "\nopen('mark', 'w').close()\n")
    changed = sonde_process("recompute", run, "--task", "data.npz", "--rule", "signs.py:Signs", check=False)
    assert changed.returncode == 2
    assert "the run was made with signs.py:Signs@" in changed.stderr
    assert not (tmp_path / "mark").exists()


# Symbolic links.


@pytest.fixture
def treasure(tmp_path: Path) -> Iterator[Path]:
    """A folder of the reader's; fails where a file of it changed."""
    folder = tmp_path / "treasure"
    folder.mkdir()
    for name in (
        "thesis.tex",
        "old.parquet",
        "metrics-3.parquet",
        f"{ASIDE}mine",
        "rows-0123456789abcdef.pack",
    ):
        (folder / name).write_text("mine")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    yield folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_no_index_is_written_or_swept_through_a_link(
    tmp_path: Path, treasure: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "RUNS_TO_INDEX", 2)
    root = tmp_path / "runs"
    for config in CONFIGS:
        write_run(root, config)
    (root / index.INDEX_FOLDER).symlink_to(treasure)
    assert invoke("show", "--runs", str(root)).exit_code == 0
    assert len(package.load(root)) == len(CONFIGS)


def test_an_index_is_swept_of_what_sonde_wrote_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "RUNS_TO_INDEX", 2)
    for config in CONFIGS:
        write_run(tmp_path, config)
    (tmp_path / index.INDEX_FOLDER).mkdir()
    for name in ("thesis.tex", "rows-0123456789abcdef.pack"):
        (tmp_path / index.INDEX_FOLDER / name).write_text("")
    package.load(tmp_path)
    there = {path.name for path in (tmp_path / index.INDEX_FOLDER).iterdir()}
    assert "thesis.tex" in there
    assert "rows-0123456789abcdef.pack" not in there


def test_no_lock_is_taken_through_a_link(tmp_path: Path, treasure: Path) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    (root / ".locks").symlink_to(treasure)
    with pytest.raises(SondeError, match="symbolic link"), hold(root, "run"):
        pass
    (root / ".locks").unlink()
    (root / ".locks").mkdir()
    (root / ".locks" / "run.lock").symlink_to(treasure / "thesis.tex")
    with pytest.raises(SondeError, match="symbolic link"), hold(root, "run"):
        pass


def test_a_runs_folder_that_is_a_link_is_read_and_never_written(tmp_path: Path, treasure: Path) -> None:
    root, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    id = write_run(elsewhere, CONFIGS[0])
    root.mkdir()
    (root / id).symlink_to(elsewhere / id)
    (elsewhere / id / "metrics-3.parquet").write_text("mine")
    assert len(package.load(root)) == 1
    folder = root / id
    manifest, rows = read_trained(folder)
    for write in (
        lambda: clean_up(folder, manifest),
        lambda: put_manifest(folder, manifest),
        lambda: commit(folder, manifest, rows, {}),
        lambda: append_log(folder, "x"),
    ):
        with pytest.raises(SondeError, match="symbolic link"):
            write()
    assert (elsewhere / id / "metrics-3.parquet").read_text() == "mine"
    done = invoke("export", "--layout", "runs", "--runs", str(root), "--out", str(tmp_path / "out"))
    assert isinstance(done.exception, SondeError)
    assert not (tmp_path / "out" / id).exists()


def test_a_log_that_is_a_link_is_not_written_and_a_file_that_is_one_is_not_handed_round(
    tmp_path: Path, treasure: Path
) -> None:
    root = tmp_path / "runs"
    folder = root / write_run(root, CONFIGS[0])
    (folder / "log.txt").symlink_to(treasure / "thesis.tex")
    with pytest.raises(SondeError, match="symbolic link"):
        append_log(folder, "x")
    moved = treasure.parent / "rows"
    (folder / "metrics.parquet").rename(moved)
    (folder / "metrics.parquet").symlink_to(moved)
    assert len(package.load(root)) == 1
    invoke("export", "--layout", "runs", "--runs", str(root), "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out" / folder.name).exists()


def test_a_run_is_swept_of_its_own_states_alone(tmp_path: Path) -> None:
    folder = tmp_path / write_run(tmp_path, CONFIGS[0])
    kept = [folder / name for name in ("mine.parquet", "model.safetensors", "weights-a.safetensors")]
    for path in (*kept, folder / "weights-3.safetensors"):
        path.write_text("")
    clean_up(folder, read_manifest(folder))
    assert all(path.exists() for path in kept)
    assert not (folder / "weights-3.safetensors").exists()


def test_what_lies_aside_as_a_link_is_removed_and_not_followed(tmp_path: Path, treasure: Path) -> None:
    (tmp_path / f"{ASIDE}file").symlink_to(treasure / "thesis.tex")
    (tmp_path / f"{ASIDE}folder").symlink_to(treasure)
    with set_aside(tmp_path / "file", tmp_path / "folder", locked=True) as (file, folder):
        file.write_text("new")
        folder.mkdir()
    assert (tmp_path / "file").read_text() == "new"


@pytest.mark.parametrize("name", ["run.json", "manifest.json", "metrics.parquet"])
def test_a_file_that_never_ends_is_refused(name: str, tmp_path: Path) -> None:
    ids = [write_run(tmp_path, config) for config in CONFIGS[:2]]
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (tmp_path / ids[0] / name).unlink()
        make(tmp_path / ids[0] / name)  # type: ignore[operator]
        assert list(package.load(tmp_path).broken) == [ids[0]]
        assert verify(tmp_path).wrong.keys() == {ids[0]}


# What a run is.


def test_a_study_takes_a_run_by_its_whole_configuration(tmp_path: Path) -> None:
    for config in CONFIGS:
        write_run(tmp_path, config)
    inner = load(tmp_path)
    first = inner.runs[0]
    other = json.loads(json.dumps(first.config))
    other["optimiser"]["lr"] = 0.5  # under the id of the first, as who tries long enough would find one
    inner.runs[0] = replace(first, description=first.description | {"config": other, "recipe": recipe_key(other)})
    gathered = gather(inner, CONFIGS, "here")
    assert first.id in gathered.left_out
    assert "optimiser.lr" in gathered.left_out[first.id]
    assert first.id not in {run.id for run in gathered.stored.runs}


def test_training_goes_on_with_no_other_configuration_of_the_same_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config()
    package.train(config, runs=tmp_path, should_stop=lambda: True)
    monkeypatch.setattr("sonde.training.session.config_digest", lambda tree: config_digest(tree | {"seed": 0}))
    with pytest.raises(SondeError, match="another configuration under this id"):
        package.train(config, runs=tmp_path)


def test_an_index_that_says_something_else_is_not_used_and_verify_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "RUNS_TO_INDEX", 2)
    for config in CONFIGS:
        write_run(tmp_path, config)
    expected = package.load(tmp_path).configs
    folder = tmp_path / index.INDEX_FOLDER
    for spoil in ("config", "about"):
        known = json.loads((folder / index.INDEX_NAME).read_text())
        del known["sha256"]
        lines = pl.read_parquet(folder / known["lines"]["file"])
        described = [json.loads(text) for text in lines["description"]]
        described[0][spoil] |= {"batch_size": 7} if spoil == "config" else {"label": "mine"}
        content = parquet(lines.with_columns(pl.Series("description", map(json.dumps, described))))
        (folder / known["lines"]["file"]).write_bytes(content)
        known["lines"]["known"] = vars(checksum(content))
        (folder / index.INDEX_NAME).write_bytes(seal(known))
        assert package.load(tmp_path).configs == expected
        assert not verify(tmp_path).wrong or ".index" in verify(tmp_path).wrong
        shutil.rmtree(folder)
        package.load(tmp_path)


# Bounds.


def test_rows_and_bytes_are_known_from_headers() -> None:
    frame = pl.DataFrame({"a": pl.repeat("x", 700_000, eager=True), "b": range(700_000)})
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", row_group_size=100_000)
    assert parquet_size(buffer).rows == 700_000
    assert 700_000 * 8 <= parquet_size(buffer).bytes < 700_000 * 20


def many_rows(run: str, many: int) -> pl.DataFrame:
    values = {"run": run, "metric": "m", "value": 1.0, "defined": True, "samples": 1, "step": 1, "epoch": 1}
    return pl.select([pl.repeat(values.get(name), many, dtype=kind).alias(name) for name, kind in SCHEMA.items()])


def test_a_few_bytes_that_become_gigabytes_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / write_run(tmp_path, CONFIGS[0])
    _, rows = read_trained(folder)
    long = parquet(rows.head(2).with_columns(reason=pl.lit("x" * 80_000_000)))
    many = parquet(many_rows(folder.name, 3_000_000))
    assert max(len(long), len(many)) < 300_000
    monkeypatch.setattr(pl, "read_parquet", lambda *_, **__: pytest.fail("it was decoded"))
    forge(folder, "metrics.parquet", long)
    with pytest.raises(SondeError, match=r"unpacks to 0\.\d+ GB"):
        read_trained(folder)
    forge(folder, "metrics.parquet", many)
    with pytest.raises(SondeError, match=r"3,000,000 rows in"):
        read_trained(folder)


def test_many_files_together_have_no_more_rows_than_their_bytes_explain(tmp_path: Path) -> None:
    for config in STUDIES["audit"].configs("quick", (1, 2)):
        folder = tmp_path / write_run(tmp_path, config)
        forge(folder, "metrics.parquet", parquet(many_rows(folder.name, 450_000)))
    stored = package.load(tmp_path)
    assert len(stored) + len(stored.broken) == 12
    assert stored.broken
    assert all("more rows than its bytes explain" in why for why in stored.broken.values())


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    writing = Journal(tmp_path, "net", {"label": "net", "model": "Net", "parameters": 3}, {"started": "now"})
    writing.write_facts({"modules": [{"name": "0", "calls": 2}]})
    writing.append(some_rows(0), 0)
    return writing.path


def test_a_journal_that_is_compressed_or_nonsense_is_refused(watched: Path) -> None:
    journal = next(watched.glob("journal-*"))
    assert package.load(watched.parent).rows.height == 3

    def forged(content: bytes) -> None:
        head = struct.pack("<II", len(content), zlib.crc32(content))
        forge(watched, journal.name, head + struct.pack("<I", zlib.crc32(head)) + content)

    buffer = io.BytesIO()
    some_rows(1).with_columns(reason=pl.lit("x" * 1_000_000)).write_ipc_stream(buffer, compression="zstd")
    forged(buffer.getvalue())
    with pytest.raises(SondeError, match="it is compressed"):
        package.load(watched.parent)
    plain = _chunk(some_rows(1))[12:]
    forged(plain)
    package.load(watched.parent)
    for content in (b"", b"\xff" * 40, plain[:40], _chunk(some_rows(1).drop("module"))[12:]):
        forged(content)
        with pytest.raises(SondeError):
            package.load(watched.parent)
    forged(_chunk(some_rows(1).with_columns(value=pl.lit(math.inf)))[12:])
    with pytest.raises(SondeError, match="defined and not finite"):
        package.load(watched.parent)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (b'{"modules": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "cannot be read"),
        (b'{"modules": [{"calls": 1}]}', "modules.0.name"),
        (b'{"modules": 3}', "modules = 3"),
        (b'{"inputs": [{"rms": NaN}]}', "inputs.0.rms"),
        (b"[]", "facts"),
    ],
    ids=["nested", "without a name", "a number", "not finite", "a list"],
)
def test_facts_are_what_readers_rely_on(facts: bytes, said: str, watched: Path) -> None:
    name = read_manifest(watched).files["facts"]
    forge(watched, name, facts)
    (run,) = package.load(watched.parent).watched
    with pytest.raises(SondeError, match=said):
        _ = run.facts


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("about.depth", 2**31 - 1),
        ("about.width", math.inf),
        ("about.alpha", math.nan),
        ("about.width", -1.0),
        ("config.model.name", "a\nb"),
    ],
)
def test_a_description_has_numbers_that_memory_holds(key: str, value: Any, tmp_path: Path) -> None:
    folder = tmp_path / write_run(tmp_path, CONFIGS[0])
    known = open_run(folder).description
    *inner, last = key.split(".")
    at = known
    for part in inner:
        at = at[part]
    at[last] = value
    forge(folder, "run.json", json.dumps(known).encode())
    with pytest.raises(SondeError, match=rf"run\.json has {key}"):
        open_run(folder)


@pytest.mark.parametrize(
    "session",
    [
        3,
        {"environment": []},
        {"environment": {"packages": [1]}},
        {"started": {}},
        {"environment": {"git": 1}},
    ],
    ids=str,
)
def test_sessions_are_what_readers_rely_on(session: Any, tmp_path: Path) -> None:
    folder = tmp_path / write_run(tmp_path, CONFIGS[0])
    known = json.loads((folder / "manifest.json").read_text())
    del known["sha256"]
    known["sessions"] = [session]
    (folder / "manifest.json").write_bytes(seal(known))
    with pytest.raises(SondeError, match=r"manifest\.json has sessions\.0"):
        read_manifest(folder)


def test_what_is_signed_beside_a_run_may_be_anything(tmp_path: Path) -> None:
    id = write_run(tmp_path, CONFIGS[0], state="unfinished", epoch=1)
    (tmp_path / ".locks").mkdir()
    for text in ("[" * 100_000, "{}", "3", '{"pid": 1e400, "host": [], "since": 3}'):
        (tmp_path / ".locks" / f"{id}.holder").write_text(text)
        assert package.load(tmp_path).runs[0].status.state == "interrupted"


def test_a_stored_configuration_builds_nothing_larger_than_what_was_stored(tmp_path: Path) -> None:
    config = tiny_config(epochs=1)
    package.train(config, runs=tmp_path)
    source = tmp_path / config.id
    changes: tuple[tuple[str, dict[str, Any]], ...] = (
        ("model", {"d": 10**6}),
        ("model", {"L": 10**7}),
        ("task", {"samples": 10**12}),
        ("probes", {"directions": 10**9}),
    )
    for part, more in changes:
        tree = to_tree(config) | {part: to_tree(config)[part] | more}
        root = tmp_path / f"{part}-{next(iter(more))}"
        shutil.copytree(source, root / run_id(tree))
        folder = root / run_id(tree)
        known = json.loads((folder / "run.json").read_text()) | {
            "id": folder.name,
            "config": tree,
            "recipe": recipe_key(tree),
        }
        forge(folder, "run.json", json.dumps(known).encode())
        rows = pl.read_parquet(folder / "metrics.parquet").with_columns(run=pl.lit(folder.name))
        forge(folder, "metrics.parquet", parquet(rows))
        done = invoke("recompute", folder.name, "--runs", str(root))
        assert isinstance(done.exception, SondeError)
        assert "far larger than what the run stored" in str(done.exception)


# What is shown.


def test_no_cell_of_a_table_begins_a_formula(tmp_path: Path) -> None:
    ids = [write_run(tmp_path / "runs", config) for config in CONFIGS[:2]]
    folder = tmp_path / "runs" / ids[0]
    _, rows = read_trained(folder)
    odd = {"metric": "=" + pl.col("metric"), "reason": pl.lit("@SUM(1)"), "value": -pl.col("value")}
    forge(folder, "metrics.parquet", parquet(rows.with_columns(**odd)))
    tree = to_tree(CONFIGS[1]) | {"scale": "+1+cmd|' /C calc'!A0", "log": "\tx"}
    write_run(tmp_path / "runs", CONFIGS[1], tree=tree)
    assert invoke("export", "--layout", "csv", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)).exit_code == 0
    numbers = 0
    for name in ("rows.csv", "runs.csv"):
        with (tmp_path / name).open(newline="") as file:
            for cell in (cell for line in csv.reader(file) for cell in line):
                try:
                    numbers += float(cell) < 0
                except ValueError:
                    assert cell[:1] not in ("=", "+", "-", "@", "\t", "\r"), cell
    assert numbers > 100


def test_a_name_makes_no_line_of_its_own(tmp_path: Path) -> None:
    assert one_line("a\nb\u2028c") == "a\\nb\\u2028c"
    assert str(SondeError("a\nb")) == "a\\nb"
    ids = [write_run(tmp_path, config) for config in CONFIGS]
    rename(tmp_path, ids[0], label="net\nsonde: all is well", rule_label="r\nsonde: all is well")
    shutil.copytree(tmp_path / ids[1], tmp_path / "x\nsonde: all is well")
    for words in (["show"], ["audit"], ["compare"], ["recovery"], ["verify"], ["diagnose"]):
        done = invoke(*words, "--runs", str(tmp_path))
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert not [line for line in done.output.splitlines() if line.startswith("sonde: all")], words
