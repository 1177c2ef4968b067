"""Epoch-by-epoch logs of the snapshots study.  A file or a log that is not there only makes n smaller."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from sonde.figures.evidence import RUNS_SCHEMA, Evidence
from sonde.paper.document import COSINE, NOT_NEGATIVE, SHARE, Document
from sonde.paper.layout import CIFAR10_RULES, SNAPSHOTS, SnapshotFile
from sonde.paper.provenance import Described, Provenance
from sonde.rows import Reading, rows_of

RULES = {**CIFAR10_RULES, "fa": "FA"}


def read_snapshots(folder: Path) -> Evidence | None:
    """Every snapshot file below a folder; whole files or none."""
    found = [(file, path, named) for file in SNAPSHOTS for path, named in _series(folder, file)]
    records = Provenance(folder).of([path for _, path, _ in found])
    runs: list[Described] = []
    rows: list[pl.DataFrame] = []
    for file, path, named in found:
        document = Document.read(path)
        for rule, key in file.logs.items():
            if key in document.value:
                reader = "cls" if file.model == "vit_mini" else "flat"
                stand_in = {"label": file.label, "rule_label": RULES[rule], "probe_size": 1, "reader": reader}
                run = records.run(path, key, stand_in, model=file.model, rule=rule, out_ln=file.out_ln)
                run.learn(
                    seed=int(named["seed"]), model_alpha=float(named["alpha"]) if "alpha" in named else None
                )
                _read_log(file, document, key, run, rows)
                runs.append(run)
    if not runs:
        return None
    fields = records.all_found(runs)
    for described in runs:  # a seed that is not as far yet belongs to the same series
        if described.where is None:
            student = described.fields["model"] == "student_net"
            series = [run for run in fields if (run["model"] == "student_net") == student]
            described.fields["epochs"] = max(run["epochs"] for run in series)
    return Evidence(pl.concat(rows), pl.DataFrame(fields, schema=RUNS_SCHEMA), str(folder))


def _series(folder: Path, file: SnapshotFile) -> Iterator[tuple[Path, dict[str, str]]]:
    """The files a pattern stands for, each with what its name says."""
    where, name = file.path.rsplit("/", 1)
    fields = re.escape(name).replace(r"\{seed\}", r"(?P<seed>\d+)").replace(r"\{L\}", r"(?P<L>\d+)")
    pattern = re.compile(fields.replace(r"\{alpha\}", r"(?P<alpha>[\d.]+)"))
    for path in sorted((folder / where).glob("*.json")):
        found = pattern.fullmatch(path.name)
        if found:
            yield path, found.groupdict()


def _read_log(
    file: SnapshotFile, document: Document, key: str, run: Described, rows: list[pl.DataFrame]
) -> None:
    """Append the log's rows, and let the run know what it says of it: its epochs and its depth.

    Gradients in a file are those of the batch-mean loss.  Where the probe size is recorded they become those of each
    sample's own loss, as runs store them; else the size stands as 1.
    """
    layers: int | None = None
    epochs: set[int] = set()
    size = run.fields["probe_size"] or 1
    samples = 0 if run.where is None else size
    for entry in document.sections(key):
        epoch = entry.count("epoch", least=0)
        if epoch in epochs:
            raise entry.error(f"{entry.key}.epoch", f"epoch {epoch} is there twice: keep one entry of it")
        epochs.add(epoch)
        norms = entry.numbers(file.norms, layers, NOT_NEGATIVE)
        layers = len(norms)
        gradients = [size * norm for norm in entry.numbers(file.gradients, layers, NOT_NEGATIVE)]
        readings = [Reading(metric="test_acc", value=entry.number("acc_eval", SHARE), samples=0)]
        readings += _layers("hidden_norm", norms, samples)
        readings += _layers("grad_norm", gradients, samples)
        if not isinstance(entry.value.get("gamma_dfa"), int | float | None):  # a number alone is of no layer
            readings += _layers("credit_cosine", entry.numbers("gamma_dfa", layers, COSINE), samples)
        rows.append(rows_of(run.fields["run"], epoch, readings, steps=itertools.repeat(0)))
    run.learn(epochs=max(epochs, default=0), depth=None if layers is None else layers - 1)


def _layers(metric: str, values: list[float], samples: int) -> list[Reading]:
    return [
        Reading(metric=metric, layer=layer, value=value, samples=samples)
        for layer, value in enumerate(values)
    ]
