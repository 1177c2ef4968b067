"""The paper layout: JSON files that existing scripts read and write, for three of the studies.

`READERS` turn a folder of files into evidence, so that figures are drawn without a run; None if the folder holds no
such file.  `WRITERS` turn evidence into files.

The files of the residual study are here: `results.json` (raw) and `results_fair.json` (scaled).  Beside each,
`layer_states….json` holds one input vector's state at every layer, which the layout has no place for and figure
`one_input` needs.  The layout records no seed: files of further seeds have theirs in the name.

The layout holds no hidden states.  If a residual file has none beside it, its networks are built at initialisation from
the file's own configuration.  Such rows have epoch 0, and the run's column `states_seed` is the seed of the weights.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch

from sonde.analysis.evidence import Evidence
from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.metrics import NOT_NEGATIVE, bounds_of
from sonde.metrics.probes import PROBES, take
from sonde.metrics.rows import Reading, rows_of
from sonde.models import PlainMLP, ResMLP
from sonde.network import Signature
from sonde.show.paper.json_file import FIRST_SEED, Document, JsonFile, JsonFiles, Provenance, stored_rows, values_along
from sonde.show.paper.log_files import cifar10_files, read_cifar10, read_snapshots, snapshot_files
from sonde.tasks import Identity

_RESULTS = {"raw": "results", "scaled": "results_fair"}
_STATES = {"raw": "layer_states", "scaled": "layer_states_fair"}
_LABELS = {"plain_mlp": PlainMLP.name, "res_mlp": ResMLP.name}
_LAYERED = {
    "gradient_norms": "preact_grad_norm",
    "activation_means": "activation_mean",
    "activation_stds": "activation_std",
}
_STAND_IN = {"rule": "bp", "rule_label": "BP", "task": "identity", "epochs": 1, "output": "relu"}
"""What the layout means if no `sonde.json` says it; that is no record, so the task has no label."""


def read_residual(folder: Path) -> Evidence | None:
    """Read every results file of the residual study in a folder; an error in one of them refuses all."""
    series = [(variant, *file) for variant, stem in _RESULTS.items() for file in _series(folder, stem)]
    beside = {path: folder / f"{_STATES[variant]}{mark}.json" for variant, path, mark, _ in series}
    traced = {path: states for path, states in beside.items() if states.is_file()}
    records = Provenance(folder).of([*beside, *traced.values()])
    rows: list[pl.DataFrame] = []
    for variant, path, _, seed in series:
        document = Document.read(path)
        states = Document.read(traced[path]) if path in traced else None
        facts = _facts(document.section("config"), variant)
        for model, label in _LABELS.items():
            run = records.run(path, model, _STAND_IN | {"label": label}, model=model, seed=seed, **facts)
            rows.extend(_rows(run.fields, document.section(model), states))
    return records.evidence(rows)


def _series(folder: Path, stem: str) -> Iterator[tuple[Path, str, int | None]]:
    """results.json, whose seed is not recorded, then results_seed123.json, …"""
    for path in sorted(folder.glob(f"{stem}*.json")):
        named = re.fullmatch(rf"{stem}((?:_seed(\d+))?)", path.stem)
        if named:
            yield path, named[1], int(named[2]) if named[2] else None


def _facts(config: Document, variant: str) -> dict[str, Any]:
    depth = config.count("num_layers")
    return {
        "variant": variant,
        "steps": config.count("training_steps"),
        "batch": config.count("batch_size"),
        "lr": config.number("learning_rate", NOT_NEGATIVE),
        "samples": config.count("num_samples"),
        "depth": depth,
        "width": config.count("hidden_dim"),
        "alpha": 1.0 if variant == "raw" else 1 / math.sqrt(depth),
    }


def _rows(run: Mapping[str, Any], network: Document, states: Document | None) -> Iterator[pl.DataFrame]:
    steps, depth, width, batch = run["steps"], run["depth"], run["width"], run["batch"]
    for key in ("initial_loss", "final_loss"):
        if key in network.value:
            network.number(key, NOT_NEGATIVE)
    readings: list[Reading] = []
    for key, metric in _LAYERED.items():
        values = network.numbers(key, depth, bounds_of(metric))
        readings += (Reading(metric=metric, layer=l, value=v, samples=batch) for l, v in enumerate(values, 1))
    if states is not None:
        for layer, units in enumerate(states.table(run["model"], depth + 1, width)):
            readings += (Reading(metric=f"state[{u}]", layer=layer, value=v, samples=1) for u, v in enumerate(units))
    if "loss_history" in network.value:  # only two figures draw it
        history = network.numbers("loss_history", steps, NOT_NEGATIVE)
        losses = (Reading(metric="batch_loss", value=value, samples=batch) for value in history)
        yield rows_of(run["run"], run["epochs"], losses, steps=itertools.count(1))
    yield rows_of(run["run"], run["epochs"], readings, steps=itertools.repeat(steps))


def residual_files(evidence: Evidence) -> JsonFiles:
    """Two files for every variant and seed, of one rule; a missing network or an undefined value is an error."""
    files: JsonFiles = {}
    rule = _rule_of(evidence.runs)
    for variant, stem in _RESULTS.items():
        runs = evidence.runs.filter(variant=variant, rule=rule)
        seeds = sorted(runs["seed"].unique(), key=lambda seed: (seed != FIRST_SEED, seed))
        for seed in seeds:
            mark = "" if seed == seeds[0] else f"_seed{seed}"
            pair = {run["model"]: run for run in runs.filter(seed=seed).iter_rows(named=True)}
            missing = sorted(_LABELS.keys() - pair.keys())
            if missing:
                raise SondeError(
                    f"the {variant} variant of seed {seed} lacks a complete run of {' and '.join(missing)}: "
                    f"`sonde run residual --seeds {seed}` trains it; nothing was exported"
                )
            ids = {model: run["run"] for model, run in pair.items()}
            files[f"{stem}{mark}.json"] = JsonFile(content=partial(_results, evidence, pair), runs=ids)
            states = JsonFile(content=partial(_states, evidence, pair))  # of the same runs
            files[f"{_STATES[variant]}{mark}.json"] = states
    if not files:
        raise SondeError("no raw or scaled run of the residual study: nothing was exported")
    return files


def _rule_of(runs: pl.DataFrame) -> str:
    """BP if it trained any run, else the only rule there is: the layout has no place for a second one."""
    rules = sorted(set(runs["rule"]))
    if "bp" in rules or not rules:
        return "bp"
    if len(rules) > 1:
        raise SondeError(
            f"the files of the residual study hold one rule, and the runs have {' and '.join(rules)}: "
            f"choose one with --only rule=NAME; nothing was exported"
        )
    return str(rules[0])


def _results(evidence: Evidence, pair: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    run = pair["plain_mlp"]
    document: dict[str, Any] = {
        "config": {
            "num_layers": run["depth"],
            "hidden_dim": run["width"],
            "num_samples": run["samples"],
            "training_steps": run["steps"],
            "learning_rate": run["lr"],
            "batch_size": run["batch"],
        }
    }
    for model in _LABELS:
        rows = stored_rows(evidence, pair[model])
        losses = values_along(rows, "step", "batch_loss")
        document[model] = {
            "final_loss": losses[-1],
            "initial_loss": losses[0],
            "loss_history": losses,
            **{key: values_along(rows, "layer", metric, epoch=run["epochs"]) for key, metric in _LAYERED.items()},
        }
    return document


def _states(evidence: Evidence, pair: Mapping[str, Mapping[str, Any]]) -> dict[str, list[list[float]]]:
    """One input vector's state in each network: layer 0 … L, each a list over units."""
    found = {}
    for model in _LABELS:
        run, rows = pair[model], stored_rows(evidence, pair[model])
        units = [values_along(rows, "layer", f"state[{u}]", epoch=run["epochs"]) for u in range(run["width"])]
        found[model] = [list(layer) for layer in zip(*units, strict=True)]
    return found


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
