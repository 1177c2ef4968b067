"""Of the residual study: `results.json` (raw) and `results_fair.json` (scaled).

Beside each, `layer_states….json` holds what the layout has no place for and figure `5_layer_transformation` needs: one
input vector's state at every layer.  The layout records no seed: further seeds carry theirs in the file name.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from sonde.analysis.evidence import Evidence
from sonde.core.errors import SondeError
from sonde.metrics import NOT_NEGATIVE, bounds_of
from sonde.metrics.rows import Reading, rows_of
from sonde.show.paper.json_file import Document, RunValues, Sheet, Sheets
from sonde.show.paper.provenance import Provenance

T = TypeVar("T")

RESULTS = {"raw": "results", "scaled": "results_fair"}
STATES = {"raw": "layer_states", "scaled": "layer_states_fair"}
MODELS = {"plain_mlp": "Plain MLP", "res_mlp": "Residual MLP"}
LAYERED = {
    "gradient_norms": "preact_grad_norm",
    "activation_means": "activation_mean",
    "activation_stds": "activation_std",
}
FIRST_SEED = 42  # its files have no seed in their names

STAND_IN = {"rule": "bp", "rule_label": "BP", "task": "identity", "epochs": 1, "output": "relu"}
"""What the layout means where no `sonde.json` says it; that is no record, so the task has no label."""


def read_residual(folder: Path) -> Evidence | None:
    """Every residual results file of a folder; whole files or none."""
    series = [(variant, *file) for variant, stem in RESULTS.items() for file in _series(folder, stem)]
    beside = {path: folder / f"{STATES[variant]}{mark}.json" for variant, path, mark, _ in series}
    traced = {path: states for path, states in beside.items() if states.is_file()}
    records = Provenance(folder).of([*beside, *traced.values()])
    rows: list[pl.DataFrame] = []
    for variant, path, _, seed in series:
        document = Document.read(path)
        states = Document.read(traced[path]) if path in traced else None
        facts = _facts(document.section("config"), variant)
        for model in MODELS:
            run = records.run(path, model, STAND_IN | {"label": MODELS[model]}, model=model, seed=seed, **facts)
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


def _rows(run: dict[str, Any], network: Document, states: Document | None) -> Iterator[pl.DataFrame]:
    steps, depth, width, batch = run["steps"], run["depth"], run["width"], run["batch"]
    for key in ("initial_loss", "final_loss"):
        if key in network.value:
            network.number(key, NOT_NEGATIVE)
    readings: list[Reading] = []
    for key, metric in LAYERED.items():
        values = network.numbers(key, depth, bounds_of(metric))
        readings += (Reading(metric=metric, layer=l, value=v, samples=batch) for l, v in enumerate(values, 1))
    if states is not None:
        for layer, units in enumerate(states.table(run["model"], depth + 1, width)):
            readings += (Reading(metric=f"state[{u}]", layer=layer, value=v, samples=1) for u, v in enumerate(units))
    if "loss_history" in network.value:  # of all figures, two draw it
        history = network.numbers("loss_history", steps, NOT_NEGATIVE)
        losses = (Reading(metric="batch_loss", value=value, samples=batch) for value in history)
        yield rows_of(run["run"], run["epochs"], losses, steps=itertools.count(1))
    yield rows_of(run["run"], run["epochs"], readings, steps=itertools.repeat(steps))


def residual_sheets(evidence: Evidence) -> Sheets:
    """Two files for every variant and seed, of one rule; a missing network or an undefined value is an error."""
    sheets: Sheets = {}
    rule = _rule_of(evidence.runs)
    for variant, stem in RESULTS.items():
        runs = evidence.runs.filter(variant=variant, rule=rule)
        seeds = sorted(runs["seed"].unique(), key=lambda seed: (seed != FIRST_SEED, seed))
        for seed in seeds:
            mark = "" if seed == seeds[0] else f"_seed{seed}"
            pair = {run["model"]: run for run in runs.filter(seed=seed).iter_rows(named=True)}
            missing = sorted(MODELS.keys() - pair.keys())
            if missing:
                raise SondeError(
                    f"the {variant} variant of seed {seed} lacks a complete run of {' and '.join(missing)}: "
                    f"`sonde run residual --seeds {seed}` trains it; nothing was exported"
                )
            ids = {model: run["run"] for model, run in pair.items()}
            sheets[f"{stem}{mark}.json"] = Sheet(content=partial(_of_both, _results, evidence, pair), runs=ids)
            sheets[f"{STATES[variant]}{mark}.json"] = Sheet(
                content=partial(_of_both, _all_states, evidence, pair)
            )  # of the same runs
    if not sheets:
        raise SondeError("no raw or scaled run of the residual study: nothing was exported")
    return sheets


def _rule_of(runs: pl.DataFrame) -> str:
    """BP where it trained any run, else the only rule there is: the layout has no place for a second one."""
    rules = sorted(set(runs["rule"]))
    if "bp" in rules or not rules:
        return "bp"
    if len(rules) > 1:
        raise SondeError(
            f"the files of the residual study hold one rule, and the runs have {' and '.join(rules)}: "
            f"choose one with --only rule=NAME; nothing was exported"
        )
    return str(rules[0])


def _of_both(content: Callable[[dict[str, RunValues]], T], evidence: Evidence, pair: dict[str, dict[str, Any]]) -> T:
    """What is made of the values of two runs, which are let go again."""
    return content({model: RunValues(evidence, run) for model, run in pair.items()})


def _results(pair: dict[str, RunValues]) -> dict[str, Any]:
    run = pair["plain_mlp"].run
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
    for model in MODELS:
        values = pair[model]
        losses = values.by("step", "batch_loss")
        document[model] = {
            "final_loss": losses[-1],
            "initial_loss": losses[0],
            "loss_history": losses,
            **{key: values.by("layer", metric, epoch=run["epochs"]) for key, metric in LAYERED.items()},
        }
    return document


def _all_states(pair: dict[str, RunValues]) -> dict[str, list[list[float]]]:
    return {model: _states(pair[model]) for model in MODELS}


def _states(values: RunValues) -> list[list[float]]:
    """One input vector's state: layer 0 … L, each a list over units."""
    last = values.run["epochs"]
    units = [values.by("layer", f"state[{unit}]", epoch=last) for unit in range(values.run["width"])]
    return [list(layer) for layer in zip(*units, strict=True)]
