"""What a store of many runs costs to read, in time and memory: a study under thousands of seeds, copied from real runs.

python benchmarks/store.py FOLDER [RUNS] [STUDY]
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
from sonde.analysis.audit import AUDIT_METRICS
from sonde.analysis.runs import OVERVIEW_METRICS
from sonde.config import RunConfig, to_tree
from sonde.store import index
from sonde.store.folder import commit, create_run, put_manifest, read_trained, run_exists
from sonde.store.load import load_manifests
from sonde.store.run import open_run
from sonde.store.schemas import Manifest
from sonde.studies import STUDIES

SEED = 42
EPOCHS = 100_000  # of the long run
FEW = 3  # its layers
LAYERS = 200  # of the deep one


def fill(root: Path, runs: int, study: str = "audit") -> None:
    """Train the study under one seed, then store each run again under the seeds of others; weights are links."""
    trained = STUDIES[study].configs("quick", [SEED])
    for config in trained:
        sonde.train(config, runs=root)
    wanted = ((config, seed) for seed in range(SEED + 1, SEED + runs) for config in trained)
    there = sum(1 for path in root.iterdir() if not path.name.startswith("."))
    known = {config: read_trained(root / config.id) for config in trained}
    for config, seed in wanted:
        copy = replace(config, seed=seed)
        if (root / copy.id).exists():
            continue
        if there >= runs:
            break
        _copy(root / config.id, root / copy.id, copy, *known[config])
        there += 1


def _copy(source: Path, target: Path, config: RunConfig, manifest: Manifest, rows: pl.DataFrame) -> None:
    """Through the store's own writer, with the tensors as links to those of the source."""
    create_run(target, to_tree(config), open_run(source).description["about"])
    wobble = 1 - 1e-3 * (config.seed % 97)  # no accuracy exceeds 1
    rows = rows.with_columns(pl.lit(config.id).alias("run"), pl.col("value") * wobble)
    ended = commit(target, replace(manifest, checksums=None), rows, {})
    tensors = {name: file for name, file in manifest.files.items() if name != "metrics"}
    for file in tensors.values():
        os.link(source / file, target / file)
    sums = {file: (manifest.checksums or {})[file] for file in tensors.values()}
    put_manifest(target, replace(ended, files=ended.files | tensors, checksums=(ended.checksums or {}) | sums))


def cost(*words: str) -> dict[str, float]:
    """Seconds and the most memory of a command, in a process of its own."""
    begin = time.perf_counter()
    command = [sys.executable, str(Path(__file__).with_name("peak.py")), *words]
    done = subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    most, worked = done.stderr.splitlines()[-1].split()
    return {
        "seconds": round(time.perf_counter() - begin, 2),
        "processor": float(worked),
        "megabytes": round(int(most) / 1000),
    }


def measure(root: Path, runs: int, study: str = "audit") -> dict[str, Any]:
    """A store of so many runs: whole commands without an index and with it, and the reading alone."""
    fill(root, runs, study)
    at = ("--runs", str(root))
    shutil.rmtree(root / index.INDEX_FOLDER, ignore_errors=True)
    found: dict[str, Any] = {"runs": runs, "study": study, "first": cost("show", *at)}
    found |= {"show": cost("show", *at), "json": cost("show", "--json", *at)}
    found["report"] = cost("report", "--no-figures", "--out", str(root.parent / "report.html"), *at)
    begin = time.process_time()
    stored = sonde.load(root)
    found |= {"load": round(time.process_time() - begin, 2), "rows": stored.rows.height}
    found["index"] = sum(file.stat().st_size for file in (root / index.INDEX_FOLDER).iterdir())
    begin = time.process_time()
    assert len(load_manifests(root, stored.configs)) == runs
    return found | {"states": round(time.process_time() - begin, 2)}


def measure_memory(root: Path, runs: int, study: str) -> dict[str, Any]:
    """What each reader takes of a store too large to be held in memory whole."""
    fill(root, runs, study)
    at = ("--runs", str(root))
    found: dict[str, Any] = {"runs": runs, "study": study}
    for name in ("show", "audit"):
        shutil.rmtree(root / index.INDEX_FOLDER, ignore_errors=True)
        found[f"{name}, no index"] = cost(name, *at)
        found[name] = cost(name, *at)
    found["index"] = sum(file.stat().st_size for file in (root / index.INDEX_FOLDER).iterdir())
    found["verify"] = cost("verify", *at)
    out = root.parent / "export"
    found["export"] = cost("export", "--study", study, "--out", str(out), *at)
    fewer = root.parent / "fewer"
    fill(fewer, runs // 10, study)
    found["fewer"] = runs // 10
    found[f"export, {runs // 10:,} runs"] = cost("export", "--study", study, "--out", str(out), "--runs", str(fewer))
    shutil.rmtree(out)
    return found


def measure_long(root: Path) -> dict[str, Any]:
    """Of one run with many layers, trained, and one with many epochs, an epoch repeated: what each command takes."""
    (config, *_) = STUDIES["residual"].configs("quick", [SEED])
    found: dict[str, Any] = {"epochs": EPOCHS, "few": FEW, "layers": LAYERS}
    begin = time.process_time()
    sonde.train(_sized(config, LAYERS, 3), runs=root / "deep")
    found["trained"] = round(time.process_time() - begin, 1)
    _repeat(root, _sized(config, FEW, 1), _sized(config, FEW, EPOCHS))
    for name in ("deep", "long"):
        at = root / name
        found[name] = {"rows": sonde.load(at).rows.height}
        found[name] |= {command: cost(command, "--runs", str(at)) for command in ("show", "audit", "verify")}
    return found


def _sized(config: RunConfig, layers: int, epochs: int) -> RunConfig:
    model = replace(config.model, L=layers)  # type: ignore[type-var]
    return replace(config, epochs=epochs, model=model, log="epoch")


def _repeat(root: Path, short: RunConfig, long: RunConfig) -> None:
    """The last epoch of a run, so many times: of what is measured every epoch, what readers ask for."""
    sonde.train(short, runs=root / "short")
    source, target = root / "short" / short.id, root / "long" / long.id
    if run_exists(target):
        return
    (root / "long").mkdir(parents=True, exist_ok=True)
    manifest, rows = read_trained(source)
    create_run(target, to_tree(long), open_run(source).description["about"])
    last = rows.filter(pl.col("metric").is_in([*AUDIT_METRICS, *OVERVIEW_METRICS]), epoch=short.epochs).drop("epoch")
    epochs = pl.DataFrame({"epoch": range(long.epochs + 1)}, schema={"epoch": pl.Int64})
    wobble = 1 + 1e-6 * pl.col("epoch")  # no value of a run is that of the epoch before
    many = epochs.join(last, how="cross").with_columns(pl.lit(long.id).alias("run"), pl.col("value") * wobble)
    many = many.select(rows.columns)
    commit(target, replace(manifest, epoch=long.epochs, checksums=None), many, {})


if __name__ == "__main__":
    where, count, study = (sys.argv[1:] + ["10000", "audit"][len(sys.argv) - 2 :])[:3]
    of = measure if study == "audit" else measure_memory
    print(json.dumps(of(Path(where), int(count), study), indent=1))
