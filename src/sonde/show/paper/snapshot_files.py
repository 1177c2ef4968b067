"""Epoch-by-epoch logs of the snapshots study.  A file or a log that is not there only makes n smaller."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from sonde.analysis.evidence import Evidence
from sonde.core.errors import SondeError
from sonde.metrics import NOT_NEGATIVE, SHARE
from sonde.metrics.rows import Reading, rows_of
from sonde.show.paper.json_file import COSINE_ROUNDED, Document, RunValues, Sheet, Sheets
from sonde.show.paper.provenance import Described, Provenance

RULES = {"bp": "BP", "fa": "FA", "dfa": "DFA"}


@dataclass(frozen=True, kw_only=True)
class SnapshotFile:
    """A file of epoch-by-epoch logs: which runs it holds, and what its keys are called."""

    path: str  # with {seed}, and {alpha} and {L} where the network has them
    model: str
    label: str
    out_ln: bool | None
    logs: dict[str, str]  # rule → key of its log
    norms: str = "hidden_norms"
    gradients: str = "bp_grad_norms_per_sample_med"


_BOTH, _FA = {"bp": "bp_log", "dfa": "dfa_log"}, {"fa": "fa_log"}
_LN: dict[str, Any] = {"model": "residual_mlp", "label": "ResMLP", "out_ln": True}
_NO_LN: dict[str, Any] = {"model": "residual_mlp", "label": "ResMLP, no terminal LN", "out_ln": False}
_STUDENT: dict[str, Any] = {"model": "student_net", "label": "StudentNet", "out_ln": None}
_VIT: dict[str, Any] = {
    "model": "vit_mini",
    "label": "ViT-Mini",
    "out_ln": True,
    "norms": "hidden_norms_cls",
    "gradients": "bp_grad_per_sample_l2_med",
}

SNAPSHOTS = (
    SnapshotFile(path="results/snapshot_evolution_v2/snapshot_evolution_s{seed}.json", logs=_BOTH, **_LN),
    SnapshotFile(path="results/snapshot_no_outln_v1/snapshot_noLN_s{seed}.json", logs=_BOTH, **_NO_LN),
    SnapshotFile(path="results/snapshot_no_outln_v1/snapshot_fa_canonical_noln_s{seed}.json", logs=_FA, **_NO_LN),
    SnapshotFile(path="results/snapshot_vit_v1/snapshot_vit_s{seed}.json", logs=_BOTH, **_VIT),
    SnapshotFile(path="results/snapshot_vit_v1/snapshot_fa_canonical_s{seed}.json", logs=_FA, **_VIT),
    SnapshotFile(path="results/snapshot_synth_v1/snapshot_synth_a{alpha}_L{L}_s{seed}.json", logs=_BOTH, **_STUDENT),
    SnapshotFile(path="results/snapshot_synth_v1/snapshot_fa_canonical_s{seed}.json", logs=_FA, **_STUDENT),
)


def read_snapshots(folder: Path) -> Evidence | None:
    """Every snapshot file below a folder; whole files or none."""
    logs = [(file, path, named) for file in SNAPSHOTS for path, named in _series(folder, file)]
    records = Provenance(folder).of([path for _, path, _ in logs])
    rows: list[pl.DataFrame] = []
    for file, path, named in logs:
        document = Document.read(path)
        for rule, key in file.logs.items():
            if key in document.value:
                reader = "cls" if file.model == "vit_mini" else "flat"
                stand_in = {"label": file.label, "rule_label": RULES[rule], "probe_size": 1, "reader": reader}
                run = records.run(path, key, stand_in, model=file.model, rule=rule, out_ln=file.out_ln)
                run.learn(seed=int(named["seed"]), model_alpha=float(named["alpha"]) if "alpha" in named else None)
                _read_log(file, document, key, run, rows)
    return records.evidence(rows)


def _series(folder: Path, file: SnapshotFile) -> Iterator[tuple[Path, dict[str, str]]]:
    """The files a pattern stands for, each with what its name says."""
    where, name = file.path.rsplit("/", 1)
    fields = re.escape(name).replace(r"\{seed\}", r"(?P<seed>\d+)").replace(r"\{L\}", r"(?P<L>\d+)")
    pattern = re.compile(fields.replace(r"\{alpha\}", r"(?P<alpha>[\d.]+)"))
    for path in sorted((folder / where).glob("*.json")):
        match = pattern.fullmatch(path.name)
        if match:
            yield path, match.groupdict()


def _read_log(file: SnapshotFile, document: Document, key: str, run: Described, rows: list[pl.DataFrame]) -> None:
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
            readings += _layers("credit_cosine", entry.numbers("gamma_dfa", layers, COSINE_ROUNDED), samples)
        rows.append(rows_of(run.fields["run"], epoch, readings, steps=itertools.repeat(0)))
    run.learn(epochs=max(epochs, default=0), depth=None if layers is None else layers - 1)


def _layers(metric: str, values: list[float], samples: int) -> list[Reading]:
    return [Reading(metric=metric, layer=layer, value=value, samples=samples) for layer, value in enumerate(values)]


def snapshots_sheets(evidence: Evidence) -> Sheets:
    """Every file of which at least one log is there."""
    sheets: Sheets = {}
    for file in SNAPSHOTS:
        runs = evidence.runs.filter(
            pl.col("model") == file.model,
            pl.col("out_ln").eq_missing(file.out_ln),
            pl.col("rule").is_in(list(file.logs)),
        )
        files: dict[str, dict[str, dict[str, Any]]] = {}
        for run in runs.sort("seed").iter_rows(named=True):
            alpha = run["model_alpha"]
            path = file.path.format(seed=run["seed"], alpha=None if alpha is None else float(alpha), L=run["depth"])
            files.setdefault(path, {})[run["rule"]] = run
        for path, by_rule in files.items():
            seed = next(iter(by_rule.values()))["seed"]
            sheets[path] = Sheet(
                content=partial(_logs, file, evidence, by_rule),
                runs={file.logs[rule]: run["run"] for rule, run in by_rule.items()},
                lacking=[f"{rule} of seed {seed}" for rule in file.logs if rule not in by_rule],
            )
    if not sheets:
        raise SondeError("no run of the snapshots study that the paper layout has a place for: nothing was exported")
    return sheets


def _logs(file: SnapshotFile, evidence: Evidence, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {file.logs[rule]: _log(file, RunValues(evidence, run)) for rule, run in found.items()}


def _log(file: SnapshotFile, values: RunValues) -> list[dict[str, Any]]:
    """One entry per epoch; gradients are those of the batch-mean loss, as the layout has them."""
    entries = []
    samples = values.run["probe_size"]
    for epoch in sorted(set(values.rows.filter(metric="hidden_norm")["epoch"])):
        entry: dict[str, Any] = {
            "epoch": epoch,
            file.norms: values.by("layer", "hidden_norm", epoch=epoch),
            file.gradients: [norm / samples for norm in values.by("layer", "grad_norm", epoch=epoch)],
            "acc_eval": values.by("epoch", "test_acc", epoch=epoch)[0],
        }
        if values.run["rule"] == "dfa":
            entry["gamma_dfa"] = values.by("layer", "credit_cosine", epoch=epoch)
        entries.append(entry)
    return entries
