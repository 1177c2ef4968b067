"""`results_cifar10.json`, one file a seed.  A seed or a rule that is not there only makes n smaller."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from sonde.figures.evidence import RUNS_SCHEMA, Evidence
from sonde.paper.document import COSINE, NOT_NEGATIVE, SHARE, Document
from sonde.paper.layout import CIFAR10_RULES
from sonde.paper.provenance import Described, Provenance
from sonde.rows import Reading, rows_of, undefined

LOGS = {"train_acc": SHARE, "test_acc": SHARE, "state_pred_error": NOT_NEGATIVE}
DIAGNOSTICS = {"bp_cosine": "credit_cosine", "perturbation_rho": "rho"}
UNDEFINED = "null in the file"


def read_cifar10(folder: Path) -> Evidence | None:
    """Every results_cifar10.json below a folder; whole files or none."""
    paths = sorted(folder.glob("results/cifar10*/results_cifar10.json"))
    records = Provenance(folder).of(paths)
    runs: list[Described] = []
    rows: list[pl.DataFrame] = []
    for path in paths:
        document = Document.read(path)
        for seed in document.value:
            methods = document.section(seed)
            if not seed.isdigit():
                raise document.error(seed, "expected a seed, a whole number written as text")
            for rule in methods.value:
                if rule not in CIFAR10_RULES:
                    raise methods.error(f"{seed}.{rule}", f"expected one of {', '.join(CIFAR10_RULES)}")
                stand_in = {"label": "ResMLP", "rule_label": CIFAR10_RULES[rule]}
                run = records.run(
                    path, f"{seed}.{rule}", stand_in, model="residual_mlp", rule=rule, seed=int(seed)
                )
                _read_method(methods.section(rule), run, rows)
                runs.append(run)
    if not runs:
        return None
    fields = records.all_found(runs)
    longest = max(run["epochs"] for run in fields)
    for described in runs:  # a seed that is not as far yet belongs to the same series
        if described.where is None:
            described.fields["epochs"] = longest
    return Evidence(pl.concat(rows), pl.DataFrame(fields, schema=RUNS_SCHEMA), str(folder))


def _read_method(method: Document, run: Described, rows: list[pl.DataFrame]) -> None:
    """Append the rows of a rule, and let the run know what they say of it: its epochs and its depth."""
    log = method.section("log")
    epochs = len(log.numbers("test_acc"))
    for name, within in LOGS.items():
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
            Reading(metric=f"drift[{name}]", value=drift.number(name, NOT_NEGATIVE), samples=0)
            for name in drift.value
        ]
    rows.append(rows_of(run.fields["run"], epochs, readings, steps=itertools.repeat(0)))
    run.learn(epochs=epochs, depth=depth)


def _diagnostics(method: Document) -> Iterator[Reading]:
    if "diagnostics" not in method.value:
        return
    found = method.section("diagnostics")
    layers: int | None = None
    arrays: list[tuple[str, list[float | None]]] = []
    for key, metric in DIAGNOSTICS.items():
        if key in found.value:
            arrays.append((metric, found.nullable(key, layers, COSINE)))
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
