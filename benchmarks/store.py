"""How long a store of many runs takes to read: the audit study under thousands of seeds, copied from six real runs.

python benchmarks/store.py FOLDER [RUNS]
"""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

import sonde
from sonde.config import RunConfig, to_tree
from sonde.store import index
from sonde.store.load import manifests
from sonde.studies import STUDIES

SEED = 42


def fill(root: Path, runs: int) -> None:
    """Train the study under one seed, then copy each run with the id and the seed of others; weights are links."""
    trained = STUDIES["audit"].configs("quick", [SEED])
    for config in trained:
        sonde.train(config, runs=root)
    wanted = ((config, seed) for seed in range(SEED + 1, SEED + runs) for config in trained)
    there = sum(1 for path in root.iterdir() if not path.name.startswith("."))
    for config, seed in wanted:
        copy = replace(config, seed=seed)
        if (root / copy.id).exists():
            continue
        if there >= runs:
            break
        _copy(root / config.id, root / copy.id, copy)
        there += 1


def _copy(source: Path, target: Path, config: RunConfig) -> None:
    target.mkdir()
    known = json.loads((source / "run.json").read_text()) | {"id": config.id, "config": to_tree(config)}
    (target / "run.json").write_text(json.dumps(known, indent=1))
    (target / "manifest.json").write_bytes((source / "manifest.json").read_bytes())
    for tensors in source.glob("*.safetensors"):
        os.link(tensors, target / tensors.name)
    rows = pl.read_parquet(source / "metrics.parquet").with_columns(pl.lit(config.id).alias("run"))
    wobble = 1 + 1e-3 * (config.seed % 97)
    rows.with_columns(pl.col("value") * wobble).write_parquet(target / "metrics.parquet")


def seconds(*words: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "sonde", *words], check=True, stdout=subprocess.DEVNULL)
    return round(time.perf_counter() - begin, 2)


def measure(root: Path, runs: int) -> dict[str, Any]:
    """A store of so many runs: whole commands without an index and with it, and the reading alone."""
    fill(root, runs)
    at = ("--runs", str(root))
    shutil.rmtree(root / index.FOLDER, ignore_errors=True)
    found: dict[str, Any] = {"runs": runs, "first": seconds("show", *at)}
    found |= {"show": seconds("show", *at), "json": seconds("show", "--json", *at)}
    found["report"] = seconds("report", "--no-figures", "--out", str(root.parent / "report.html"), *at)
    begin = time.perf_counter()
    stored = sonde.load(root)
    found |= {"load": round(time.perf_counter() - begin, 2), "rows": stored.rows.height}
    found["index"] = sum(file.stat().st_size for file in (root / index.FOLDER).iterdir())
    begin = time.perf_counter()
    assert len(manifests(root, stored.configs)) == runs
    return found | {"states": round(time.perf_counter() - begin, 2)}


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10_000), indent=1))
