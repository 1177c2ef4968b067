"""Epoch-by-epoch logs of the snapshots study."""

from typing import Any

import polars as pl

from sonde.errors import SondeError
from sonde.figures.evidence import Evidence
from sonde.paper.layout import SNAPSHOTS, SnapshotFile
from sonde.paper.sheet import Sheet, Sheets
from sonde.paper.writing.values import RunValues


def snapshots_sheets(evidence: Evidence) -> Sheets:
    """Every file of which at least one log is there."""
    sheets: Sheets = {}
    for file in SNAPSHOTS:
        runs = evidence.runs.filter(
            pl.col("model") == file.model,
            pl.col("out_ln").eq_missing(file.out_ln),
            pl.col("rule").is_in(list(file.logs)),
        )
        places: dict[str, dict[str, dict[str, Any]]] = {}
        for run in runs.sort("seed").iter_rows(named=True):
            alpha = run["model_alpha"]
            path = file.path.format(
                seed=run["seed"], alpha=None if alpha is None else float(alpha), L=run["depth"]
            )
            places.setdefault(path, {})[run["rule"]] = run
        for path, found in places.items():
            seed = next(iter(found.values()))["seed"]
            sheets[path] = Sheet(
                content={
                    file.logs[rule]: _log(file, RunValues(evidence, run)) for rule, run in found.items()
                },
                runs={file.logs[rule]: run["run"] for rule, run in found.items()},
                lacking=[f"{rule} of seed {seed}" for rule in file.logs if rule not in found],
            )
    if not sheets:
        raise SondeError(
            "no run of the snapshots study that the paper layout has a place for: nothing was exported"
        )
    return sheets


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
