"""`results.json` and `results_fair.json`."""

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from sonde.figures.evidence import RUNS_SCHEMA, Evidence
from sonde.paper.document import Document
from sonde.paper.layout import LAYERED, MODELS, RESULTS, STATES
from sonde.rows import Reading, rows_of


def read_residual(folder: Path) -> Evidence | None:
    """Every residual results file of a folder; whole files or none."""
    runs: list[dict[str, Any]] = []
    rows: list[pl.DataFrame] = []
    for variant, stem in RESULTS.items():
        for path, mark, seed in _series(folder, stem):
            document = Document.read(path)
            states = folder / f"{STATES[variant]}{mark}.json"
            traces = Document.read(states) if states.is_file() else None
            for model in MODELS:
                run = _run(path, document, model, variant, seed)
                runs.append(run)
                rows.extend(_rows(run, document.section(model), traces))
    if not runs:
        return None
    return Evidence(pl.concat(rows), pl.DataFrame(runs, schema=RUNS_SCHEMA), str(folder))


def _series(folder: Path, stem: str) -> Iterator[tuple[Path, str, int | None]]:
    """results.json, whose seed is not recorded, then results_seed123.json, …"""
    for path in sorted(folder.glob(f"{stem}*.json")):
        found = re.fullmatch(rf"{stem}((?:_seed(\d+))?)", path.stem)
        if found:
            yield path, found[1], int(found[2]) if found[2] else None


def _run(path: Path, document: Document, model: str, variant: str, seed: int | None) -> dict[str, Any]:
    config = document.section("config")
    depth = config.count("num_layers")
    return {
        "run": f"{path.name}:{model}",
        "label": MODELS[model],
        "model": model,
        "rule": "bp",
        "rule_label": "BP",
        "task": "identity",
        "task_label": "identity",
        "out_ln": None,
        "variant": variant,
        "seed": seed,
        "scale": "full",
        "epochs": 1,
        "steps": config.count("training_steps"),
        "batch": config.count("batch_size"),
        "lr": config.number("learning_rate"),
        "samples": config.count("num_samples"),
        "depth": depth,
        "width": config.count("hidden_dim"),
        "alpha": 1.0 if variant == "raw" else 1 / math.sqrt(depth),
    }


def _rows(run: dict[str, Any], network: Document, traces: Document | None) -> Iterator[pl.DataFrame]:
    steps, depth, width, batch = run["steps"], run["depth"], run["width"], run["batch"]
    history = network.numbers("loss_history", steps)
    for key in ("initial_loss", "final_loss"):
        network.number(key)
    readings: list[Reading] = []
    for key, metric in LAYERED.items():
        values = network.numbers(key, depth)
        readings += (Reading(metric=metric, layer=l, value=v, samples=batch) for l, v in enumerate(values, 1))
    if traces is not None:
        for layer, units in enumerate(traces.table(run["model"], depth + 1, width)):
            readings += (
                Reading(metric=f"state[{u}]", layer=layer, value=v, samples=1) for u, v in enumerate(units)
            )
    losses = (Reading(metric="batch_loss", value=value, samples=batch) for value in history)
    yield rows_of(run["run"], run["epochs"], losses, steps=itertools.count(1))
    yield rows_of(run["run"], run["epochs"], readings, steps=itertools.repeat(steps))
