"""Stores that somebody made to do harm: every one well sealed, since checksums are no signature.

`Workshop` makes an honest store once; `hostile` copies it and spoils the copy in one way.  The same number is the same
store.
"""

import contextlib
import io
import json
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import safetensors.torch
import torch

import sonde
from conftest import tiny_config
from sonde.core.run_ids import run_id
from sonde.metrics.rows import SCHEMA, WATCHED
from sonde.store import index
from sonde.store.files import ASIDE, seal
from sonde.store.folder import parquet
from sonde.store.journal import Journal, _chunk
from sonde.store.schemas import checksum
from sonde.studies import STUDIES
from stores import write_run

ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        2**31 - 1,
        2**63,
        10**30,
        1e308,
        math.nan,
        math.inf,
        -math.inf,
        "",
        "x",
        "\n",
        "=1+1",
    ),
    *([], {}, [None], {"name": None}, [[1]], {"a": {"b": [{}]}}, "\x1b[31m", "../../x", "y" * 5000, "\ud7ff"),
)
FACTS = {
    "modules": [
        {"name": "0", "type": "Linear", "calls": 2, "shape": [4, 3], "input_shape": [4, 8], "kind": "linear"},
        {"name": "1", "type": "ReLU", "calls": 0, "reason": "it was not called"},
    ],
    "parameters": [
        {
            "name": "0.weight",
            "shape": [3, 8],
            "requires_grad": True,
            "in_optimiser": True,
            "start": {"mean": 0.1},
        }
    ],
    "shared": [],
    "optimisers": [{"type": "Adam", "groups": [{"lr": 0.001, "weight_decay": 0, "parameters": 2}]}],
    "inputs": [{"name": "0", "shape": [4, 8], "dtype": "float32", "mean": 0.0, "std": 1.0, "rms": 1.0, "max": 2.0}],
    "targets": [],
    "training": True,
    "in_the_other_mode": [],
    "output_op": "Addmm",
    "output_shape": [4, 3],
    "bare_pairs": [],
    "bends": True,
    "unregistered": [],
    "loss_ops": ["NllLoss"],
    "loss_shape": [4, 3],
    "loss_axis": [1, 2],
    "further_terms": False,
    "switched": ["0"],
    "pairs": {
        "kind": "classes",
        "nearest": {"agree": 0.3, "by_chance": 0.3, "n": 32},
        "relation": None,
        "leak": None,
    },
    "experiments": None,
}
NET = "net"


@dataclass(frozen=True)
class Grounds:
    """Where a store lies, what the reader owns beside it, and what shows that code was run."""

    root: Path
    treasure: Path
    payload: Path  # a file of code that leaves the mark when it is run
    mark: Path


class Workshop:
    """An honest store of trained and watched runs, to be copied and spoiled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.honest = folder / "honest"
        for config in STUDIES["audit"].configs("quick", (42,)):
            write_run(self.honest, config)
        for config in STUDIES["rules"].configs("quick", (42,))[:3]:
            write_run(self.honest, config)
        self.trained = tiny_config(seed=1, epochs=1)
        sonde.train(self.trained, runs=self.honest)
        self._watch()
        shutil.rmtree(self.honest / ".locks", ignore_errors=True)

    def _watch(self) -> None:
        about = {"label": NET, "model": "Net", "parameters": 3}
        writing = Journal(self.honest, NET, about, {"started": "2026-01-02T03:04:05+00:00"})
        writing.write_facts(FACTS)
        for step in range(6):
            writing.append(watched_rows(step), step)
            if step == 3:
                writing._write_part(replace(writing.manifest, step=step))
        if writing._heartbeat is not None:
            writing._heartbeat.remove()

    def grounds(self, number: int) -> Grounds:
        """An own copy of the store, and a folder of the reader's beside it."""
        grounds = grounds_in(self.folder, number)
        shutil.copytree(self.honest, grounds.root)
        grounds.treasure.mkdir()
        for name in (
            "thesis.tex",
            "rows.parquet",
            "metrics-3.parquet",
            "weights.safetensors",
            f"{ASIDE}mine",
        ):
            (grounds.treasure / name).write_text("mine")
        leave = f"open({str(grounds.mark)!r}, 'w').close()"
        grounds.payload.write_text(f"{leave}\ndef go(*a, **k): {leave}\nGo = go\n")
        return grounds


def grounds_in(folder: Path, number: int) -> Grounds:
    place = folder / f"{number:04d}"
    treasure = place / "treasure"
    return Grounds(place / "runs", treasure, treasure / "payload.py", place / "mark")


def watched_rows(step: int) -> pl.DataFrame:
    lines = [(NET, None, step, i, "out_rms", 1.5 + step, True, None, 4, f"{i}") for i in range(2)] + [
        (NET, None, step, None, "loss", 2.0 - step / 10, True, None, 4, None)
    ]
    return pl.DataFrame(lines, schema=WATCHED, orient="row")


def hostile(workshop: Workshop, number: int, *, small: bool = False) -> tuple[Grounds, str]:
    """The store of this number, and what was done to it; `small` keeps bombs to what a test has time for."""
    chance = random.Random(number)
    grounds = workshop.grounds(number)
    ways = [way for way, weight in WAYS.items() for _ in range(weight)]
    way = ways[number % len(ways)]
    said = [way(grounds, chance, small)]
    for _ in range(chance.choice((0, 1, 3)) if way in SEVERAL else 0):
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError, IndexError):
            said.append(way(grounds, chance, small))  # what was spoiled before may not be spoiled again
    return grounds, f"{way.__name__}: {'; '.join(said)}"


# Parts of a store, read and written as they are: nothing of Sonde's that checks is used.


def folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if (path / "run.json").exists() and not path.is_symlink())


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def sealed(folder: Path, contents: dict[str, bytes], change: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Files under their names, and a manifest that fits them."""
    manifest = read_json(folder / "manifest.json")
    manifest.pop("sha256", None)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        manifest["checksums"][name] = vars(checksum(content))
    if change is not None:
        change(manifest)
    (folder / "manifest.json").write_bytes(seal(manifest))


def describe(folder: Path, known: dict[str, Any]) -> Path:
    """Another description; where that makes the run another, the folder and its rows follow."""
    try:
        id = run_id(known["config"]) if known.get("config") else known["id"]
    except (KeyError, TypeError, ValueError, AttributeError):
        id = known.get("id", folder.name)
    bare = isinstance(id, str) and id not in ("", ".", "..") and not set("/\0") & set(id) and len(id.encode()) < 200
    if bare and id != folder.name:
        known["id"] = id
        rows = folder / "metrics.parquet"
        contents = {"run.json": dumped(known)}
        if rows.exists():
            contents["metrics.parquet"] = parquet(pl.read_parquet(rows).with_columns(run=pl.lit(id)))
        sealed(folder, contents)
        return folder.rename(folder.parent / id)
    sealed(folder, {"run.json": dumped(known)})
    return folder


def dumped(known: Any) -> bytes:
    return ('{\n "format": ' + json.dumps(known, indent=1).split('"format": ', 1)[1]).encode()


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a tree, inner ones too."""
    if path:
        yield path
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        yield from leaves(value, (*path, key))


def put(tree: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree[key]
    if isinstance(tree, dict) or path[-1] != "odd":
        tree[path[-1]] = value


def drop(tree: Any, path: tuple[Any, ...]) -> None:
    for key in path[:-1]:
        tree = tree[key]
    del tree[path[-1]]


def spoil(tree: Any, chance: random.Random) -> str:
    """One place changed, removed or added."""
    path = chance.choice(list(leaves(tree)) or [("odd",)])
    how = chance.randrange(4) if isinstance(tree, list) or path[0] in tree else 1
    if how == 0:
        drop(tree, path)
    elif how == 1:
        put(tree, (*path[:-1], "odd") if isinstance(path[-1], str) else path, chance.choice(ODD))
    else:
        put(tree, path, chance.choice(ODD))
    return f"{'.'.join(map(str, path))} ({('removed', 'added')[how] if how < 2 else 'changed'})"


# Ways to spoil a store.


def payload_in_configuration(grounds: Grounds, chance: random.Random, small: bool) -> str:
    """Code named in a field of the configuration, under the id that follows from it."""
    folder = chance.choice([one for one in folders(grounds.root) if one.name != NET])
    known = read_json(folder / "run.json")
    named = chance.choice((f"{grounds.payload}:go", "payload:go", "timeit:timeit", "os:system", f"{grounds.payload}"))
    options = {"stmt": f"open({str(grounds.mark)!r}, 'w')", "command": f"touch {grounds.mark}", "number": 1}
    config, said = known["config"], ""
    part = chance.choice(("model", "rule", "task", "optimiser", "probes", "anywhere"))
    if part == "probes":
        config["probes"][chance.choice(("names", "costly"))] = [named, f"{named}@1f2e3d4c5b6a"]
    elif part == "anywhere":
        path = chance.choice(list(leaves(config)))
        put(config, path, named)
        said = ".".join(map(str, path))
    else:
        keys = chance.choice((("source",), ("name",), ("name", "source")))
        config[part] = config[part] | dict.fromkeys(keys, named) | (options if chance.random() < 0.5 else {})
    known["guests"] = ["payload.py"]
    sealed(folder, {"payload.py": grounds.payload.read_bytes()})
    describe(folder, known)
    return f"{named} in {part} {said}"


def odd_description(grounds: Grounds, chance: random.Random, small: bool) -> str:
    folder = chance.choice(folders(grounds.root))
    known = read_json(folder / "run.json")
    part = chance.choice(("about", "config", "config", "defaults", ""))
    if part == "defaults":
        known["defaults"] = {chance.choice(("model.x", "x", "no.such", "seed", "probes.k.y")): chance.choice(ODD)}
        said = str(known["defaults"])
    else:
        said = spoil(known[part] if part and known.get(part) else known, chance)
    describe(folder, known)
    return f"{folder.name}: {part} {said}"


def odd_manifest(grounds: Grounds, chance: random.Random, small: bool) -> str:
    folder = chance.choice(folders(grounds.root))
    said = []
    inner = chance.choice(("", "sessions", "seconds"))
    sealed(
        folder,
        {},
        lambda manifest: said.append(spoil(manifest if not inner else manifest[inner] or manifest, chance)),
    )
    return f"{folder.name}: {inner} {said[0]}"


def odd_facts(grounds: Grounds, chance: random.Random, small: bool) -> str:
    folder = grounds.root / NET
    name = read_json(folder / "manifest.json")["files"]["facts"]
    known = json.loads(json.dumps(FACTS))
    said = [spoil(known, chance) for _ in range(chance.choice((1, 1, 2)))]
    sealed(folder, {name: json.dumps(known).encode()})
    return ", ".join(said)


def odd_rows(grounds: Grounds, chance: random.Random, small: bool) -> str:
    folder = chance.choice(folders(grounds.root))
    name = "metrics.parquet" if folder.name != NET else "metrics-0001.parquet"
    rows = pl.read_parquet(folder / name)
    column = chance.choice(rows.columns)
    kind = rows.schema[column]
    values: dict[Any, tuple[Any, ...]] = {
        pl.Int64: (-1, 2**62, None, 0, 10**7),
        pl.Float64: (math.inf, -math.inf, math.nan, None, 1e308, -1e308, 5e-324),
        pl.String: ("", None, "\n", "=1+1", "a[b", "a/null", "x" * 100_000, "\x1b[2J"),
        pl.Boolean: (True, False, None),
    }
    value = chance.choice(values[kind])
    chosen = pl.int_range(pl.len()) % chance.choice((1, 2, 7)) == 0
    how = chance.randrange(5)
    if how == 0:
        rows = rows.head(chance.choice((0, 1)))
    elif how == 1:
        rows = pl.concat([rows, rows])
    elif how == 2:
        rows = (
            rows.cast({column: pl.String}).drop(chance.choice(rows.columns))
            if chance.random() < 0.5
            else rows.reverse()
        )
    else:
        rows = rows.with_columns(
            pl.when(chosen).then(pl.lit(value, dtype=kind)).otherwise(pl.col(column)).alias(column)
        )
    sealed(folder, {name: parquet(rows)})
    return f"{folder.name}: {column} = {str(value)[:20]!r}, {how}"


def odd_tensors(grounds: Grounds, chance: random.Random, small: bool) -> str:
    folder = next(one for one in folders(grounds.root) if (one / "weights.safetensors").exists())
    name = chance.choice(("weights", "initial", "rule"))
    content = (folder / f"{name}.safetensors").read_bytes()
    tensors = safetensors.torch.load(content)
    how = chance.randrange(5)
    if how == 0:
        content = content[: chance.randrange(len(content))]
    elif how == 1:
        content = (2**62).to_bytes(8, "little") + content[8:]
    elif how == 2:
        key = chance.choice(list(tensors))
        tensors[key] = torch.zeros(3, 5)
        content = safetensors.torch.save(tensors)
    elif how == 3:
        content = safetensors.torch.save(
            {"": torch.zeros(0)},
            metadata={"skeleton": chance.choice(("[" * 2000, "{}", "1", '{"__tensor__": "x"}'))},
        )
    else:
        content = safetensors.torch.save({"x": torch.full((3,), math.nan)})
    sealed(folder, {f"{name}.safetensors": content})
    return f"{name}, {how}"


def large_configuration(grounds: Grounds, chance: random.Random, small: bool) -> str:
    """Sonde's own parts, of a size that no machine has."""
    folder = next(one for one in folders(grounds.root) if (one / "weights.safetensors").exists())
    known = read_json(folder / "run.json")
    part, option = chance.choice(
        (
            ("model", "d"),
            ("model", "L"),
            ("task", "samples"),
            ("task", "d"),
            ("probes", "size"),
            ("probes", "directions"),
        )
    )
    value = chance.choice((10**5, 10**7, 10**12))
    task = chance.choice(("identity", "rhm", "teacher", "parity"))
    if part == "task":
        known["config"]["task"] = {"name": task, option: value} | ({"L": 2**31, "s": 5} if task == "rhm" else {})
    else:
        known["config"][part][option] = value
    describe(folder, known)
    return f"{part}.{option} = {value} ({task})"


def odd_index(grounds: Grounds, chance: random.Random, small: bool) -> str:
    enough, index.RUNS_TO_INDEX = index.RUNS_TO_INDEX, 2
    try:
        sonde.load(grounds.root)
    finally:
        index.RUNS_TO_INDEX = enough
    folder = grounds.root / index.INDEX_FOLDER
    known = read_json(folder / index.INDEX_NAME)
    known.pop("sha256")
    lines = pl.read_parquet(folder / known["lines"]["file"])
    column = chance.choice(lines.columns)
    how = chance.randrange(4)
    if how == 0:
        said = spoil(known, chance)
    elif how == 1:
        known["blocks"][0]["file"] = "../../treasure/thesis.tex"
        known["lines"]["file"] = chance.choice(("../../treasure/rows.parquet", known["lines"]["file"]))
        said = "a path"
    else:
        if column in ("description", "manifest", "heavy"):
            tree = [json.loads(lines[column][0])]
            said = f"{column}: {spoil(tree, chance)}"
            text = json.dumps(tree[0] if tree else None)
            lines = lines.with_columns(pl.Series(column, [text, *lines[column][1:]]))
        else:
            value = chance.choice((None, -1, 10**6)) if column == "block" else chance.choice((None, "x"))
            lines = lines.with_columns(pl.lit(value, dtype=lines.schema[column]).alias(column))
            said = f"{column} = {value}"
        content = parquet(lines)
        (folder / known["lines"]["file"]).write_bytes(content)
        known["lines"]["known"] = vars(checksum(content))
    (folder / index.INDEX_NAME).write_bytes(seal(known))
    return said


def links(grounds: Grounds, chance: random.Random, small: bool) -> str:
    """Symbolic links to what the reader owns, and files that never end."""
    root, treasure = grounds.root, grounds.treasure
    how = chance.randrange(9)
    folder = chance.choice(folders(root))
    if how == 0:
        for number in range(index.RUNS_TO_INDEX):
            _numbered(folder if folder.name != NET else folders(root)[0], number)
        (root / index.INDEX_FOLDER).symlink_to(treasure)
    elif how == 1:
        (root / ".locks").symlink_to(treasure)
    elif how == 2:
        for name in ("run.json", "manifest.json"):
            shutil.copy(folder / name, treasure)
        shutil.rmtree(folder)
        folder.symlink_to(treasure)
    elif how in (3, 4):
        name = chance.choice(sorted(path.name for path in folder.iterdir()))
        (folder / name).unlink()
        (folder / name).symlink_to(treasure / "thesis.tex" if how == 3 else "/dev/zero")
    elif how == 5:
        name = chance.choice(("run.json", "manifest.json", "metrics.parquet"))
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
    elif how == 6:
        (root / f"{ASIDE}000000-99999999-x").symlink_to(treasure)
        (folder / f"{ASIDE}x").symlink_to(treasure)
    elif how == 7:
        shutil.rmtree(folder / "log.txt", ignore_errors=True)
        (folder / "log.txt").unlink(missing_ok=True)
        (folder / "log.txt").symlink_to(treasure / "thesis.tex")
        (folder / "metrics-9.parquet").symlink_to(treasure / "rows.parquet")
    else:
        (root / ".locks").mkdir(exist_ok=True)
        sign = root / ".locks" / f"{folder.name}.holder"
        sign.write_text(chance.choice(("[" * 100_000, "{}", "[]", '{"pid": 1e400, "host": [], "since": 3}', "null")))
    return f"{how}, {folder.name}"


def _numbered(folder: Path, number: int) -> None:
    """A copy of a run under another seed, so that an index is due."""
    known = read_json(folder / "run.json")
    known["config"]["seed"] = 1000 + number
    copy = folder.parent / f"copy-{number}"
    shutil.copytree(folder, copy)
    describe(copy, known)


def bombs(grounds: Grounds, chance: random.Random, small: bool) -> str:
    """A few bytes that would become gigabytes."""
    how = chance.randrange(8)
    folder = next(one for one in folders(grounds.root) if one.name != NET)
    net = grounds.root / NET
    many = 1_000_000 if small else 12_000_000
    if how == 0:
        known = read_json(folder / "run.json")
        known["about"]["depth"] = chance.choice((2**31 - 1, 2**40, 100_001))
        describe(folder, known)
    elif how == 1:
        rows = pl.read_parquet(folder / "metrics.parquet").head(2)
        text = "x" * (many * 40)
        sealed(folder, {"metrics.parquet": parquet(rows.with_columns(reason=pl.lit(text)))})
    elif how == 2:
        sealed(folder, {"metrics.parquet": parquet(_many_rows(folder.name, many))})
    elif how == 3:
        buffer = io.BytesIO()
        pl.concat([watched_rows(9).head(1)] * 1000).with_columns(reason=pl.lit("x" * (many // 30))).write_ipc_stream(
            buffer, compression="zstd"
        )
        _journal(net, buffer.getvalue())
    elif how == 4:
        name = chance.choice(("run.json", "manifest.json"))
        (folder / name).write_bytes(b'{\n "format": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    elif how == 5:
        name = read_json(net / "manifest.json")["files"]["facts"]
        sealed(net, {name: b'{"modules": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"})
    elif how == 6:
        for number in range(8):
            _numbered(folder, number)
        for one in folders(grounds.root):
            if (one / "metrics.parquet").exists():
                sealed(one, {"metrics.parquet": parquet(_many_rows(one.name, many // 20))})
    else:
        known = read_json(folder / "run.json")
        known["config"]["epochs"] = chance.choice((2**31, 2**62))
        known["about"]["steps"] = 2**62
        describe(folder, known)
    return str(how)


def _many_rows(run: str, many: int) -> pl.DataFrame:
    values = {
        "run": run,
        "metric": "test_acc",
        "value": 1.0,
        "defined": True,
        "samples": 1,
        "step": 1,
        "epoch": 1,
    }
    return pl.select([pl.repeat(values.get(name), many, dtype=kind).alias(name) for name, kind in SCHEMA.items()])


def _journal(folder: Path, content: bytes) -> None:
    """One chunk with its checksums."""
    import struct
    import zlib

    head = struct.pack("<II", len(content), zlib.crc32(content))
    name = next(path.name for path in folder.iterdir() if path.name.startswith("journal"))
    (folder / name).write_bytes(head + struct.pack("<I", zlib.crc32(head)) + content)


def odd_journal(grounds: Grounds, chance: random.Random, small: bool) -> str:
    net = grounds.root / NET
    rows = watched_rows(9)
    how = chance.randrange(6)
    if how == 0:
        rows = rows.drop("module")
    elif how == 1:
        rows = rows.with_columns(value=pl.lit(math.inf))
    elif how == 2:
        rows = rows.with_columns(metric=pl.lit("nonfinite"), value=pl.lit(chance.choice((0.0, 7.0, -1.0))))
    elif how == 3:
        rows = rows.with_columns(step=pl.lit(None, dtype=pl.Int64))
    content = _chunk(rows)[12:]
    if how >= 4:
        other = bytearray(content)
        for _ in range(chance.choice((1, 3, 20))):
            other[chance.randrange(len(other))] = chance.randrange(256)
        content = bytes(other)
    _journal(net, content)
    return str(how)


def odd_names(grounds: Grounds, chance: random.Random, small: bool) -> str:
    """Labels and folders that would be obeyed where they are shown."""
    folder = chance.choice(folders(grounds.root))
    name = chance.choice(
        (
            "\nsonde: all is well",
            "=cmd|' /C calc'!A0",
            "@SUM(1)",
            "\x1b[2J",
            "-n",
            "<script>x</script>",
            "a" * 3000,
        )
    )
    known = read_json(folder / "run.json")
    how = chance.randrange(3)
    if how == 0:
        for key in ("label", "rule_label", "task_label", "model"):
            if key in known["about"]:
                known["about"][key] = name
    elif how == 1 and known.get("config"):
        known["config"][chance.choice(("model", "rule", "task"))]["name"] = name
    else:
        shutil.copytree(folder, folder.parent / name[:100].replace("/", "|"), dirs_exist_ok=True)
    describe(folder, known)
    return f"{how} {name[:20]!r}"


def chosen_id(grounds: Grounds, chance: random.Random, small: bool) -> str:
    """Another configuration in the folder of a study's run, as if 40 bits had been found by trying."""
    folder = chance.choice([one for one in folders(grounds.root) if one.name != NET])
    known = read_json(folder / "run.json")
    known["config"]["optimiser"]["lr"] = 0.5
    sealed(folder, {"run.json": dumped(known)})
    return folder.name


Way = Callable[[Grounds, random.Random, bool], str]
SEVERAL = (payload_in_configuration, odd_description, odd_manifest, odd_rows, odd_names)
"""Are done to several runs of a store, too."""
WAYS: dict[Way, int] = {
    payload_in_configuration: 6,
    odd_description: 6,
    odd_manifest: 4,
    odd_facts: 4,
    odd_rows: 4,
    odd_tensors: 2,
    large_configuration: 2,
    odd_index: 3,
    links: 4,
    bombs: 3,
    odd_journal: 2,
    odd_names: 2,
    chosen_id: 1,
}
