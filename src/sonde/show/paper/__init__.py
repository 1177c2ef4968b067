"""The paper layout: JSON files that existing scripts read and write, for three of the studies.

`READERS` turn a folder of files into evidence, so that figures are drawn without a run; None if the folder holds no
such file.  `WRITERS` turn evidence into files.

The layout holds no hidden states.  If a residual file has none beside it, its networks are built at initialisation from
the file's own configuration.  Such rows have epoch 0, and the run's column `states_seed` is the seed of the weights.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import torch

from sonde.analysis.evidence import Evidence
from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.metrics.probes import PROBES, take
from sonde.metrics.rows import rows_of
from sonde.models import PlainMLP, ResMLP
from sonde.network import Signature
from sonde.show.paper.json_file import JsonFiles
from sonde.show.paper.log_files import cifar10_files, read_cifar10, read_snapshots, snapshot_files
from sonde.show.paper.residual_files import FIRST_SEED, read_residual, residual_files
from sonde.tasks import Identity

READERS: dict[str, Callable[[Path], Evidence | None]] = {
    "residual": read_residual,
    "snapshots": read_snapshots,
    "cifar10": read_cifar10,
}
WRITERS: dict[str, Callable[[Evidence], JsonFiles]] = {
    "residual": residual_files,
    "snapshots": snapshot_files,
    "cifar10": cifar10_files,
}


def from_files(folder: Path) -> dict[str, Evidence]:
    """The evidence of each study from the files of a folder; a folder with none of them is an error."""
    if not folder.is_dir():
        raise SondeError(f"{folder} is not a folder: --from names one with files of the paper layout in it")
    read = {study: reader(folder) for study, reader in READERS.items()}
    found = {study: evidence for study, evidence in read.items() if evidence is not None}
    if not found:
        raise SondeError(
            f"{folder} holds no file of the paper layout: expected results.json, results_fair.json, "
            f"results/snapshot_*/*.json or results/cifar10*/results_cifar10.json"
        )
    if "residual" in found:
        found["residual"] = _with_states(found["residual"])
    return found


def _with_states(evidence: Evidence) -> Evidence:
    traced = evidence.rows.filter(pl.col("metric").str.starts_with("state["))["run"].unique()
    missing = ~pl.col("run").is_in(traced.to_list()) & (pl.col("task") == "identity")
    runs = evidence.runs.with_columns(states_seed=pl.when(missing).then(pl.col("seed").fill_null(FIRST_SEED)))
    drawn = runs.filter(pl.col("states_seed").is_not_null()).iter_rows(named=True)
    return Evidence(pl.concat([evidence.rows, *map(_states_at_init, drawn)]), runs, evidence.source)


def _states_at_init(run: dict[str, Any]) -> pl.DataFrame:
    seed = run["states_seed"]
    kind = PlainMLP if run["model"] == "plain_mlp" else ResMLP
    model = kind(d=run["width"], L=run["depth"], weight_scale=1.0 if run["variant"] == "raw" else "1/sqrt(L)")
    task = Identity(d=run["width"])
    data = task.load(seed, None, torch.device("cpu"), torch.float32)
    signature = Signature(shape=task.shape, outputs=task.outputs, classifies=task.classifies)
    net = model.build(signature, generator(seed, "init"))
    snapshot = take(net, *data.test(0, 1), data.loss)
    return rows_of(run["run"], 0, PROBES["trace"](snapshot), steps=itertools.repeat(0))
