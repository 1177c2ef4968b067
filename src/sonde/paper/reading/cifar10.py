"""`results_cifar10.json`, one file a seed.  A seed or a rule that is not there only makes n smaller."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from sonde.figures.evidence import RUNS_SCHEMA, Evidence
from sonde.paper.document import Document
from sonde.paper.layout import CIFAR10_RULES
from sonde.rows import Reading, rows_of, undefined

LOGS = ("train_acc", "test_acc", "state_pred_error")
DIAGNOSTICS = {"bp_cosine": "credit_cosine", "perturbation_rho": "rho"}
UNDEFINED = "null in the file"


def read_cifar10(folder: Path) -> Evidence | None:
    """Every results_cifar10.json below a folder; whole files or none."""
    runs: list[dict[str, Any]] = []
    rows: list[pl.DataFrame] = []
    for path in sorted(folder.glob("results/cifar10*/results_cifar10.json")):
        document = Document.read(path)
        for seed in document.value:
            methods = document.section(seed)
            if not seed.isdigit():
                raise document.error(seed, "expected a seed, a whole number written as text")
            for rule in methods.value:
                if rule not in CIFAR10_RULES:
                    raise methods.error(f"{seed}.{rule}", f"expected one of {', '.join(CIFAR10_RULES)}")
                run = _run(path, int(seed), rule)
                run |= _read_method(methods.section(rule), run, rows)
                runs.append(run)
    if not runs:
        return None
    for run in runs:  # a seed that is not as far yet belongs to the same series
        run["epochs"] = max(other["epochs"] for other in runs if other["task"] == run["task"])
    return Evidence(pl.concat(rows), pl.DataFrame(runs, schema=RUNS_SCHEMA), str(folder))


def _run(path: Path, seed: int, rule: str) -> dict[str, Any]:
    return {
        "run": f"{path.parent.name}/{path.name}:{seed}:{rule}",
        "label": "ResMLP",
        "model": "residual_mlp",
        "rule": rule,
        "rule_label": CIFAR10_RULES[rule],
        "task": "cifar10",
        "task_label": "CIFAR-10",
        "seed": seed,
        "scale": "full",
        "probe_size": 1,
    }


def _read_method(method: Document, run: dict[str, Any], rows: list[pl.DataFrame]) -> dict[str, Any]:
    """Append the rows of a rule; return what they say of the run: its epochs and its depth."""
    log = method.section("log")
    epochs = len(log.numbers("test_acc"))
    for name in LOGS:
        if name in log.value:
            values = log.numbers(name, epochs)
            for epoch, value in enumerate(values, start=1):
                reading = Reading(metric=name, value=value, samples=0)
                rows.append(rows_of(run["run"], epoch, [reading], steps=itertools.repeat(0)))
    readings = list(_diagnostics(method))
    depth = max((r.layer for r in readings if r.layer is not None), default=None)
    if "drift" in method.value:
        drift = method.section("drift")
        readings += [
            Reading(metric=f"drift[{name}]", value=drift.number(name), samples=0) for name in drift.value
        ]
    rows.append(rows_of(run["run"], epochs, readings, steps=itertools.repeat(0)))
    return {"epochs": epochs, "depth": depth}


def _diagnostics(method: Document) -> Iterator[Reading]:
    if "diagnostics" not in method.value:
        return
    found = method.section("diagnostics")
    layers: int | None = None
    arrays: list[tuple[str, list[float | None]]] = []
    for key, metric in DIAGNOSTICS.items():
        if key in found.value:
            arrays.append((metric, found.nullable(key, layers)))
            layers = len(arrays[-1][1])
    if "nudging" in found.value:
        nudging = found.section("nudging")
        arrays += [(f"nudge[{eta}]", nudging.nullable(eta, layers)) for eta in nudging.value]
    for metric, values in arrays:
        for layer, value in enumerate(values):
            if value is None:
                yield undefined(metric, UNDEFINED, layer=layer)
            else:
                yield Reading(metric=metric, layer=layer, value=value, samples=0)
