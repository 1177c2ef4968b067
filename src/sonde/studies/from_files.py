"""Evidence of the residual study from files in the paper layout.

The layout holds no hidden states, so for a file that has none beside it the networks are rebuilt at
initialisation from the file's own configuration; the rows say so by their epoch, 0.
"""

import itertools
from pathlib import Path

import polars as pl
import torch

from sonde.figures.evidence import Evidence
from sonde.generators import generator
from sonde.models import MODELS
from sonde.network import Signature
from sonde.paper.read import read_residual
from sonde.probes import PROBES, take
from sonde.rows import rows_of
from sonde.tasks import Identity

SEED = 42  # the layout does not record one


def residual_from_files(folder: Path) -> Evidence:
    """What the files say, and the states at initialisation of networks whose files have none."""
    evidence = read_residual(folder)
    traced = set(evidence.rows.filter(pl.col("metric").str.starts_with("state["))["run"])
    rows = [evidence.rows]
    for run in evidence.runs.iter_rows(named=True):
        if run["run"] not in traced:
            rows.append(_states_at_init(run))
    return Evidence(pl.concat(rows), evidence.runs, evidence.source)


def _states_at_init(run: dict[str, object]) -> pl.DataFrame:
    seed = SEED if run["seed"] is None else int(str(run["seed"]))
    width, depth = int(str(run["width"])), int(str(run["depth"]))
    weight_scale = 1.0 if run["variant"] == "raw" else "1/sqrt(L)"
    model = MODELS[str(run["model"])](d=width, L=depth, weight_scale=weight_scale)  # type: ignore[call-arg]
    task = Identity(d=width)
    data = task.load(seed, None, torch.device("cpu"), torch.float32)
    signature = Signature(shape=task.shape, outputs=task.outputs, classifies=task.classifies)
    net = model.build(signature, generator(seed, "init"))
    snapshot = take(net, *data.test(0, 1), data.loss)
    return rows_of(str(run["run"]), 0, PROBES["trace"](snapshot), steps=itertools.repeat(0))
