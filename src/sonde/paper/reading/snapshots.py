"""Epoch-by-epoch logs of the snapshots study.  A file or a log that is not there only makes n smaller."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from sonde.figures.evidence import RUNS_SCHEMA, Evidence
from sonde.paper.document import Document
from sonde.paper.layout import CIFAR10_RULES, SNAPSHOTS, SnapshotFile
from sonde.rows import Reading, rows_of

RULES = {**CIFAR10_RULES, "fa": "FA"}


def read_snapshots(folder: Path) -> Evidence | None:
    """Every snapshot file below a folder; whole files or none."""
    runs: list[dict[str, Any]] = []
    rows: list[pl.DataFrame] = []
    for file in SNAPSHOTS:
        for path, named in _series(folder, file):
            document = Document.read(path)
            for rule, key in file.logs.items():
                if key in document.value:
                    run = _run(file, path, rule, named)
                    run |= _read_log(file, document, key, run, rows)
                    runs.append(run)
    if not runs:
        return None
    for run in runs:  # a seed that is not as far yet belongs to the same series
        run["epochs"] = max(other["epochs"] for other in runs if other["task"] == run["task"])
    return Evidence(pl.concat(rows), pl.DataFrame(runs, schema=RUNS_SCHEMA), str(folder))


def _series(folder: Path, file: SnapshotFile) -> Iterator[tuple[Path, dict[str, str]]]:
    """The files a pattern stands for, each with what its name says."""
    where, name = file.path.rsplit("/", 1)
    fields = re.escape(name).replace(r"\{seed\}", r"(?P<seed>\d+)").replace(r"\{L\}", r"(?P<L>\d+)")
    pattern = re.compile(fields.replace(r"\{alpha\}", r"(?P<alpha>[\d.]+)"))
    for path in sorted((folder / where).glob("*.json")):
        found = pattern.fullmatch(path.name)
        if found:
            yield path, found.groupdict()


def _run(file: SnapshotFile, path: Path, rule: str, named: dict[str, str]) -> dict[str, Any]:
    task = "teacher" if file.model == "student_net" else "cifar10"
    return {
        "run": f"{path.parent.name}/{path.name}:{file.logs[rule]}",
        "label": file.label,
        "model": file.model,
        "rule": rule,
        "rule_label": RULES[rule],
        "task": task,
        "task_label": "teacher" if task == "teacher" else "CIFAR-10",
        "out_ln": file.out_ln,
        "seed": int(named["seed"]),
        "scale": "full",
        "model_alpha": float(named["alpha"]) if "alpha" in named else None,
        "probe_size": 1,  # gradients are those of the batch-mean loss already
    }


def _read_log(
    file: SnapshotFile, document: Document, key: str, run: dict[str, Any], rows: list[pl.DataFrame]
) -> dict[str, Any]:
    """Append the log's rows; return what it says of the run: its epochs and its depth."""
    layers: int | None = None
    epoch = 0
    for entry in document.sections(key):
        epoch = entry.count("epoch", least=0)
        norms = entry.numbers(file.norms, layers)
        layers = len(norms)
        readings = [Reading(metric="test_acc", value=entry.number("acc_eval"), samples=0)]
        readings += _layers("hidden_norm", norms)
        readings += _layers("grad_norm", entry.numbers(file.gradients, layers))
        if "gamma_dfa" in entry.value:
            readings += _layers("credit_cosine", entry.numbers("gamma_dfa", layers))
        rows.append(rows_of(run["run"], epoch, readings, steps=itertools.repeat(0)))
    return {"epochs": epoch, "depth": None if layers is None else layers - 1}


def _layers(metric: str, values: list[float]) -> list[Reading]:
    return [Reading(metric=metric, layer=layer, value=value, samples=0) for layer, value in enumerate(values)]
