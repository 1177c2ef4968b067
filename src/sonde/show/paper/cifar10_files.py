"""`results_cifar10.json`, one file a seed.  A seed or a rule that is not there only makes n smaller."""

import itertools
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from sonde.analysis.evidence import Evidence
from sonde.core.errors import SondeError
from sonde.metrics import NOT_NEGATIVE, TRAINED
from sonde.metrics.rows import Reading, rows_of, undefined
from sonde.show.paper.json_file import COSINE_ROUNDED, Document, RunValues, Sheet, Sheets
from sonde.show.paper.provenance import Described, Provenance

FIRST_SEED = 42  # its folder has no seed in its name
RULES = {"bp": "BP", "dfa": "DFA", "state_bridge": "State Bridge", "credit_bridge": "Credit Bridge"}
LOGS = {name: TRAINED[name].bounds for name in ("train_acc", "test_acc", "state_pred_error")}
DIAGNOSTICS = {"bp_cosine": "credit_cosine", "perturbation_rho": "rho"}
UNDEFINED = "null in the file"
NUDGE = re.compile(r"nudge\[([^\]]+)\]$")
DRIFT = re.compile(r"drift\[(.+\.weight)\]$")  # a bias that begins at zero has no relative drift


def read_cifar10(folder: Path) -> Evidence | None:
    """Every results_cifar10.json below a folder; whole files or none."""
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
                if rule not in RULES:
                    raise methods.error(f"{seed}.{rule}", f"expected one of {', '.join(RULES)}")
                stand_in = {"label": "ResMLP", "rule_label": RULES[rule]}
                run = records.run(path, f"{seed}.{rule}", stand_in, model="residual_mlp", rule=rule, seed=int(seed))
                _read_method(methods.section(rule), run, rows)
    return records.evidence(rows)


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
    for key, metric in DIAGNOSTICS.items():
        if key in diagnostics.value:
            arrays.append((metric, diagnostics.nullable(key, layers, COSINE_ROUNDED)))
            layers = len(arrays[-1][1])
    if "nudging" in diagnostics.value:
        nudging = diagnostics.section("nudging")
        arrays += [(f"nudge[{eta}]", nudging.nullable(eta, layers)) for eta in nudging.value]
    for metric, values in arrays:
        for layer, value in enumerate(values):
            if value is None:
                yield undefined(metric, UNDEFINED, layer=layer)
            else:
                yield Reading(metric=metric, layer=layer, value=value, samples=0)


def _content(seed: int, evidence: Evidence, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {str(seed): {rule: _method(RunValues(evidence, run)) for rule, run in found.items()}}


def cifar10_sheets(evidence: Evidence) -> Sheets:
    """One file a seed, keyed by its seed, then by rule."""
    sheets: Sheets = {}
    for (seed,), runs in evidence.runs.sort("seed").group_by("seed", maintain_order=True):
        by_rule = {run["rule"]: run for run in runs.iter_rows(named=True) if run["rule"] in RULES}
        if by_rule:
            sheets[_path(int(seed))] = Sheet(
                content=partial(_content, int(seed), evidence, by_rule),
                runs={f"{seed}.{rule}": run["run"] for rule, run in by_rule.items()},
                lacking=[f"{rule} of seed {seed}" for rule in RULES if rule not in by_rule],
            )
    if not sheets:
        raise SondeError("no run of the cifar10 study: nothing was exported")
    return sheets


def _path(seed: int) -> str:
    folder = "cifar10" if seed == FIRST_SEED else f"cifar10_seed{seed}"
    return f"results/{folder}/results_cifar10.json"


def _method(values: RunValues) -> dict[str, Any]:
    log = {name: values.by("epoch", name) for name in ("train_acc", "test_acc")}
    tested, trained = (values.rows.filter(metric=name)["epoch"].sort().to_list() for name in ("test_acc", "train_acc"))
    log["test_acc"] = log["test_acc"][-len(trained) :]  # the layout has no entry for initialisation
    if tested[-len(trained) :] != trained:
        raise SondeError(
            f"run {values.run['run']} was not tested after every epoch, which the paper layout asks for: train it with "
            f"probes.test_every=1; nothing was exported"
        )
    if values.run["rule"] == "state_bridge":
        log["state_pred_error"] = values.by("epoch", "state_pred_error")
    last = values.run["epochs"]
    metrics = values.rows.filter(epoch=last)["metric"].unique().to_list()
    return {
        "log": log,
        "diagnostics": {
            "bp_cosine": values.nullable("layer", "credit_cosine", epoch=last),
            "perturbation_rho": values.nullable("layer", "rho", epoch=last),
            "nudging": {
                name[1]: values.nullable("layer", name[0], epoch=last)
                for name in sorted(filter(None, map(NUDGE.match, metrics)), key=lambda match: float(match[1]))
            },
        },
        "drift": {
            name[1]: values.by("epoch", name[0], epoch=last)[0]
            for name in sorted(filter(None, map(DRIFT.match, metrics)), key=lambda match: match[0])
        },
    }
