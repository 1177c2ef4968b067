"""Epoch-by-epoch logs of the snapshots study, and `results_cifar10.json` of the cifar10 study, one file a seed.

A seed, a rule or a log that is missing only makes n smaller.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from sonde.analysis.evidence import Evidence
from sonde.core.errors import SondeError
from sonde.metrics import NOT_NEGATIVE, SHARE, TRAINED
from sonde.metrics.rows import Reading, rows_of, undefined
from sonde.models import ResidualMLP
from sonde.show.paper.json_file import (
    COSINE_ROUNDED,
    FIRST_SEED,
    DescribedRun,
    Document,
    JsonFile,
    JsonFiles,
    Provenance,
    nullable_by_layer,
    stored_rows,
    values_along,
)

_LABELS = {"bp": "BP", "fa": "FA", "dfa": "DFA", "state_bridge": "State Bridge", "credit_bridge": "Credit Bridge"}
_CIFAR10_RULES = ("bp", "dfa", "state_bridge", "credit_bridge")
_LOGS = {name: TRAINED[name].bounds for name in ("train_acc", "test_acc", "state_pred_error")}
_DIAGNOSTICS = {"bp_cosine": "credit_cosine", "perturbation_rho": "rho"}
_NUDGE = re.compile(r"nudge\[([^\]]+)\]$")
_DRIFT = re.compile(r"drift\[(.+\.weight)\]$")  # a bias that begins at zero has no relative drift


@dataclass(frozen=True, kw_only=True)
class _SnapshotFile:
    """A file of epoch-by-epoch logs: which runs it holds, and the names of its keys."""

    path: str  # with {seed}, and {alpha} and {L} where the network has them
    model: str
    label: str
    out_ln: bool | None
    logs: dict[str, str]  # rule → key of its log
    norms: str = "hidden_norms"
    gradients: str = "bp_grad_norms_per_sample_med"


_BOTH, _FA = {"bp": "bp_log", "dfa": "dfa_log"}, {"fa": "fa_log"}
_LN: dict[str, Any] = {"model": "residual_mlp", "label": ResidualMLP().label, "out_ln": True}
_NO_LN: dict[str, Any] = {"model": "residual_mlp", "label": ResidualMLP(out_ln=False).label, "out_ln": False}
_STUDENT: dict[str, Any] = {"model": "student_net", "label": "StudentNet", "out_ln": None}
_VIT: dict[str, Any] = {
    "model": "vit_mini",
    "label": "ViT-Mini",
    "out_ln": True,
    "norms": "hidden_norms_cls",
    "gradients": "bp_grad_per_sample_l2_med",
}

_SNAPSHOTS = (
    _SnapshotFile(path="results/snapshot_evolution_v2/snapshot_evolution_s{seed}.json", logs=_BOTH, **_LN),
    _SnapshotFile(path="results/snapshot_no_outln_v1/snapshot_noLN_s{seed}.json", logs=_BOTH, **_NO_LN),
    _SnapshotFile(path="results/snapshot_no_outln_v1/snapshot_fa_canonical_noln_s{seed}.json", logs=_FA, **_NO_LN),
    _SnapshotFile(path="results/snapshot_vit_v1/snapshot_vit_s{seed}.json", logs=_BOTH, **_VIT),
    _SnapshotFile(path="results/snapshot_vit_v1/snapshot_fa_canonical_s{seed}.json", logs=_FA, **_VIT),
    _SnapshotFile(path="results/snapshot_synth_v1/snapshot_synth_a{alpha}_L{L}_s{seed}.json", logs=_BOTH, **_STUDENT),
    _SnapshotFile(path="results/snapshot_synth_v1/snapshot_fa_canonical_s{seed}.json", logs=_FA, **_STUDENT),
)


def read_snapshots(folder: Path) -> Evidence | None:
    """Read every snapshot file below a folder; an error in one of them refuses all."""
    logs = [(file, path, named) for file in _SNAPSHOTS for path, named in _series(folder, file)]
    records = Provenance(folder).of([path for _, path, _ in logs])
    rows: list[pl.DataFrame] = []
    for file, path, named in logs:
        document = Document.read(path)
        for rule, key in file.logs.items():
            if key in document.value:
                reader = "cls" if file.model == "vit_mini" else "flat"
                stand_in = {"label": file.label, "rule_label": _LABELS[rule], "probe_size": 1, "reader": reader}
                run = records.run(path, key, stand_in, model=file.model, rule=rule, out_ln=file.out_ln)
                run.learn(seed=int(named["seed"]), model_alpha=float(named["alpha"]) if "alpha" in named else None)
                _read_log(file, document, key, run, rows)
    return records.evidence(rows)


def _series(folder: Path, file: _SnapshotFile) -> Iterator[tuple[Path, dict[str, str]]]:
    """The files that match a pattern, each with the fields of its name."""
    where, name = file.path.rsplit("/", 1)
    fields = re.escape(name).replace(r"\{seed\}", r"(?P<seed>\d+)").replace(r"\{L\}", r"(?P<L>\d+)")
    pattern = re.compile(fields.replace(r"\{alpha\}", r"(?P<alpha>[\d.]+)"))
    for path in sorted((folder / where).glob("*.json")):
        match = pattern.fullmatch(path.name)
        if match:
            yield path, match.groupdict()


def _read_log(file: _SnapshotFile, document: Document, key: str, run: DescribedRun, rows: list[pl.DataFrame]) -> None:
    """Append the log's rows, and add its epochs and depth to the run.

    Gradients in a file are those of the batch-mean loss.  If the probe size is recorded they are converted to those of
    each sample's own loss, as runs store them; else the size is taken as 1.
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
        if not isinstance(entry.value.get("gamma_dfa"), int | float | None):  # a single number belongs to no layer
            readings += _layers("credit_cosine", entry.numbers("gamma_dfa", layers, COSINE_ROUNDED), samples)
        rows.append(rows_of(run.fields["run"], epoch, readings, steps=itertools.repeat(0)))
    run.learn(epochs=max(epochs, default=0), depth=None if layers is None else layers - 1)


def _layers(metric: str, values: list[float], samples: int) -> list[Reading]:
    return [Reading(metric=metric, layer=layer, value=value, samples=samples) for layer, value in enumerate(values)]


def snapshot_files(evidence: Evidence) -> JsonFiles:
    """Every file for which there is at least one log."""
    files: JsonFiles = {}
    for file in _SNAPSHOTS:
        runs = evidence.runs.filter(
            pl.col("model") == file.model,
            pl.col("out_ln").eq_missing(file.out_ln),
            pl.col("rule").is_in(list(file.logs)),
        )
        by_path: dict[str, dict[str, dict[str, Any]]] = {}
        for run in runs.sort("seed").iter_rows(named=True):
            alpha = run["model_alpha"]
            path = file.path.format(seed=run["seed"], alpha=None if alpha is None else float(alpha), L=run["depth"])
            by_path.setdefault(path, {})[run["rule"]] = run
        for path, by_rule in by_path.items():
            seed = next(iter(by_rule.values()))["seed"]
            files[path] = JsonFile(
                content=partial(_logs, file, evidence, by_rule),
                runs={file.logs[rule]: run["run"] for rule, run in by_rule.items()},
                lacking=[f"{rule} of seed {seed}" for rule in file.logs if rule not in by_rule],
            )
    if not files:
        raise SondeError("no run of the snapshots study that the paper layout has a place for: nothing was exported")
    return files


def _logs(file: _SnapshotFile, evidence: Evidence, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {file.logs[rule]: _log(file, run, stored_rows(evidence, run)) for rule, run in found.items()}


def _log(file: _SnapshotFile, run: Mapping[str, Any], rows: pl.DataFrame) -> list[dict[str, Any]]:
    """One entry per epoch; gradients are those of the batch-mean loss, as the layout has them."""
    entries = []
    samples = run["probe_size"]
    for epoch in sorted(set(rows.filter(metric="hidden_norm")["epoch"])):
        entry: dict[str, Any] = {
            "epoch": epoch,
            file.norms: values_along(rows, "layer", "hidden_norm", epoch=epoch),
            file.gradients: [norm / samples for norm in values_along(rows, "layer", "grad_norm", epoch=epoch)],
            "acc_eval": values_along(rows, "epoch", "test_acc", epoch=epoch)[0],
        }
        if run["rule"] == "dfa":
            entry["gamma_dfa"] = values_along(rows, "layer", "credit_cosine", epoch=epoch)
        entries.append(entry)
    return entries


def read_cifar10(folder: Path) -> Evidence | None:
    """Read every results_cifar10.json below a folder; an error in one of them refuses all."""
    paths = sorted(folder.glob("results/cifar10*/results_cifar10.json"))
    records = Provenance(folder).of(paths)
    rows: list[pl.DataFrame] = []
    for path in paths:
        document = Document.read(path)
        for seed in document.value:
            methods = document.section(seed)
            if not re.fullmatch(r"[0-9]{1,15}", seed):
                raise document.error(seed, "expected a seed, a whole number written as text")
            for rule in methods.value:
                if rule not in _CIFAR10_RULES:
                    raise methods.error(f"{seed}.{rule}", f"expected one of {', '.join(_CIFAR10_RULES)}")
                stand_in = {"label": _LN["label"], "rule_label": _LABELS[rule]}
                run = records.run(path, f"{seed}.{rule}", stand_in, model="residual_mlp", rule=rule, seed=int(seed))
                _read_method(methods.section(rule), run, rows)
    return records.evidence(rows)


def _read_method(method: Document, run: DescribedRun, rows: list[pl.DataFrame]) -> None:
    """Append the rows of a rule, and add its epochs and depth to the run."""
    log = method.section("log")
    epochs = len(log.numbers("test_acc"))
    for name, within in _LOGS.items():
        if name in log.value:
            values = log.numbers(name, epochs, within)
            for epoch, value in enumerate(values, start=1):
                reading = Reading(metric=name, value=value, samples=0)
                rows.append(rows_of(run.fields["run"], epoch, [reading], steps=itertools.repeat(0)))
    readings = list(_diagnostics(method))
    depth = max((r.layer for r in readings if r.layer is not None), default=None)
    if "drift" in method.value:
        drift = method.section("drift")
        readings += [
            Reading(metric=f"drift[{name}]", value=drift.number(name, NOT_NEGATIVE), samples=0) for name in drift.value
        ]
    rows.append(rows_of(run.fields["run"], epochs, readings, steps=itertools.repeat(0)))
    run.learn(epochs=epochs, depth=depth)


def _diagnostics(method: Document) -> Iterator[Reading]:
    if "diagnostics" not in method.value:
        return
    diagnostics = method.section("diagnostics")
    layers: int | None = None
    arrays: list[tuple[str, list[float | None]]] = []
    for key, metric in _DIAGNOSTICS.items():
        if key in diagnostics.value:
            arrays.append((metric, diagnostics.nullable(key, layers, COSINE_ROUNDED)))
            layers = len(arrays[-1][1])
    if "nudging" in diagnostics.value:
        nudging = diagnostics.section("nudging")
        arrays += [(f"nudge[{eta}]", nudging.nullable(eta, layers)) for eta in nudging.value]
    for metric, values in arrays:
        for layer, value in enumerate(values):
            if value is None:
                yield undefined(metric, "null in the file", layer=layer)
            else:
                yield Reading(metric=metric, layer=layer, value=value, samples=0)


def cifar10_files(evidence: Evidence) -> JsonFiles:
    """One file a seed, keyed by its seed, then by rule."""
    files: JsonFiles = {}
    for (seed,), runs in evidence.runs.sort("seed").group_by("seed", maintain_order=True):
        by_rule = {run["rule"]: run for run in runs.iter_rows(named=True) if run["rule"] in _CIFAR10_RULES}
        if by_rule:
            folder = "cifar10" if seed == FIRST_SEED else f"cifar10_seed{seed}"
            files[f"results/{folder}/results_cifar10.json"] = JsonFile(
                content=partial(_methods, int(seed), evidence, by_rule),
                runs={f"{seed}.{rule}": run["run"] for rule, run in by_rule.items()},
                lacking=[f"{rule} of seed {seed}" for rule in _CIFAR10_RULES if rule not in by_rule],
            )
    if not files:
        raise SondeError("no run of the cifar10 study: nothing was exported")
    return files


def _methods(seed: int, evidence: Evidence, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {str(seed): {rule: _method(run, stored_rows(evidence, run)) for rule, run in found.items()}}


def _method(run: Mapping[str, Any], rows: pl.DataFrame) -> dict[str, Any]:
    log = {name: values_along(rows, "epoch", name) for name in ("train_acc", "test_acc")}
    tested, trained = (rows.filter(metric=name)["epoch"].sort().to_list() for name in ("test_acc", "train_acc"))
    log["test_acc"] = log["test_acc"][-len(trained) :]  # the layout has no entry for initialisation
    if tested[-len(trained) :] != trained:
        raise SondeError(
            f"run {run['run']} was not tested after every epoch, which the paper layout asks for: train it with "
            f"probes.test_every=1; nothing was exported"
        )
    if run["rule"] == "state_bridge":
        log["state_pred_error"] = values_along(rows, "epoch", "state_pred_error")
    last = run["epochs"]
    metrics = rows.filter(epoch=last)["metric"].unique().to_list()
    return {
        "log": log,
        "diagnostics": {
            "bp_cosine": nullable_by_layer(rows, "credit_cosine", epoch=last),
            "perturbation_rho": nullable_by_layer(rows, "rho", epoch=last),
            "nudging": {
                name[1]: nullable_by_layer(rows, name[0], epoch=last)
                for name in sorted(filter(None, map(_NUDGE.match, metrics)), key=lambda match: float(match[1]))
            },
        },
        "drift": {
            name[1]: values_along(rows, "epoch", name[0], epoch=last)[0]
            for name in sorted(filter(None, map(_DRIFT.match, metrics)), key=lambda match: match[0])
        },
    }
