"""`results_cifar10.json`, one file a seed."""

import re
from typing import Any

from sonde.errors import SondeError
from sonde.figures.evidence import Evidence
from sonde.paper.layout import CIFAR10_RULES, cifar10_path
from sonde.paper.sheet import Sheet, Sheets
from sonde.paper.writing.values import RunValues

NUDGE = re.compile(r"nudge\[([^\]]+)\]$")
DRIFT = re.compile(r"drift\[(.+\.weight)\]$")  # a bias that begins at zero has no relative drift


def cifar10_sheets(evidence: Evidence) -> Sheets:
    """One file a seed, keyed by its seed, then by rule."""
    sheets: Sheets = {}
    for (seed,), runs in evidence.runs.sort("seed").group_by("seed", maintain_order=True):
        found = {run["rule"]: run for run in runs.iter_rows(named=True) if run["rule"] in CIFAR10_RULES}
        if found:
            sheets[cifar10_path(int(seed))] = Sheet(
                content={str(seed): {rule: _method(RunValues(evidence, run)) for rule, run in found.items()}},
                runs={f"{seed}.{rule}": run["run"] for rule, run in found.items()},
                lacking=[f"{rule} of seed {seed}" for rule in CIFAR10_RULES if rule not in found],
            )
    if not sheets:
        raise SondeError("no run of the cifar10 study: nothing was exported")
    return sheets


def _method(values: RunValues) -> dict[str, Any]:
    log = {name: values.by("epoch", name) for name in ("train_acc", "test_acc")}
    log["test_acc"] = log["test_acc"][-len(log["train_acc"]) :]  # the layout has no entry for initialisation
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
                found[1]: values.nullable("layer", found[0], epoch=last)
                for found in sorted(
                    filter(None, map(NUDGE.match, metrics)), key=lambda match: float(match[1])
                )
            },
        },
        "drift": {
            found[1]: values.by("epoch", found[0], epoch=last)[0]
            for found in sorted(filter(None, map(DRIFT.match, metrics)), key=lambda match: match[0])
        },
    }
