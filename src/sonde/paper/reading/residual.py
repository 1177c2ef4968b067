"""`results.json` and `results_fair.json`."""

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from sonde.figures.evidence import RUNS_SCHEMA, Evidence
from sonde.paper.document import ANY, NOT_NEGATIVE, Document
from sonde.paper.layout import LAYERED, MODELS, RESULTS, STATES
from sonde.paper.provenance import Described, Provenance
from sonde.rows import Reading, rows_of

STAND_IN = {"rule": "bp", "rule_label": "BP", "task": "identity", "epochs": 1}
"""What the layout means where no `sonde.json` says it; that is no record, so the task has no label."""


def read_residual(folder: Path) -> Evidence | None:
    """Every residual results file of a folder; whole files or none."""
    series = [(variant, *found) for variant, stem in RESULTS.items() for found in _series(folder, stem)]
    beside = {path: folder / f"{STATES[variant]}{mark}.json" for variant, path, mark, _ in series}
    traced = {path: states for path, states in beside.items() if states.is_file()}
    records = Provenance(folder).of([*beside, *traced.values()])
    runs: list[Described] = []
    rows: list[pl.DataFrame] = []
    for variant, path, _, seed in series:
        document = Document.read(path)
        states = Document.read(traced[path]) if path in traced else None
        facts = _facts(document.section("config"), variant)
        for model in MODELS:
            run = records.run(
                path, model, STAND_IN | {"label": MODELS[model]}, model=model, seed=seed, **facts
            )
            runs.append(run)
            rows.extend(_rows(run.fields, document.section(model), states))
    if not runs:
        return None
    fields = records.all_found(runs)
    return Evidence(pl.concat(rows), pl.DataFrame(fields, schema=RUNS_SCHEMA), str(folder))


def _series(folder: Path, stem: str) -> Iterator[tuple[Path, str, int | None]]:
    """results.json, whose seed is not recorded, then results_seed123.json, …"""
    for path in sorted(folder.glob(f"{stem}*.json")):
        found = re.fullmatch(rf"{stem}((?:_seed(\d+))?)", path.stem)
        if found:
            yield path, found[1], int(found[2]) if found[2] else None


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
        values = network.numbers(key, depth, ANY if metric == "activation_mean" else NOT_NEGATIVE)
        readings += (Reading(metric=metric, layer=l, value=v, samples=batch) for l, v in enumerate(values, 1))
    if states is not None:
        for layer, units in enumerate(states.table(run["model"], depth + 1, width)):
            readings += (
                Reading(metric=f"state[{u}]", layer=layer, value=v, samples=1) for u, v in enumerate(units)
            )
    if "loss_history" in network.value:  # of all figures, two draw it
        history = network.numbers("loss_history", steps, NOT_NEGATIVE)
        losses = (Reading(metric="batch_loss", value=value, samples=batch) for value in history)
        yield rows_of(run["run"], run["epochs"], losses, steps=itertools.count(1))
    yield rows_of(run["run"], run["epochs"], readings, steps=itertools.repeat(steps))
