"""From stored runs to the evidence of a study: which runs belong to it, and which are left out and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from sonde.config import RunConfig, to_tree
from sonde.errors import SondeError
from sonde.figures.evidence import RUNS_SCHEMA, Evidence
from sonde.store.load import Run, Runs
from sonde.studies.narrow import differences


class NoRuns(SondeError):
    """The store holds no complete run of the study."""


@dataclass(frozen=True)
class Gathered:
    """The stored runs of a study, as evidence for figures, and what the store holds beside them: run → why."""

    stored: Runs
    evidence: Evidence
    left_out: dict[str, str]


def gather(stored: Runs, configs: Sequence[RunConfig], source: str) -> Gathered:
    """The stored, complete runs of the given configurations."""
    wanted = {config.id: to_tree(config) for config in configs}
    inside = [run for run in stored.runs if run.id in wanted and run.manifest.state == "complete"]
    left_out = {
        run.id: _why(run, wanted) for run in stored.runs if run.id not in {chosen.id for chosen in inside}
    }
    if not inside:
        reasons = (
            "; ".join(f"{run}: {why}" for run, why in list(left_out.items())[:3]) or "the store is empty"
        )
        raise NoRuns(f"{source} holds no complete run of this study ({reasons})")
    runs = pl.DataFrame([_describe(run) for run in inside], schema=RUNS_SCHEMA)
    rows = stored.rows.join(runs.select("run"), on="run", how="semi")
    return Gathered(Runs(rows, inside), Evidence(rows, runs, source), left_out)


def _why(run: Run, wanted: dict[str, dict[str, Any]]) -> str:
    if run.id in wanted:
        return f"it is {run.manifest.state}"
    pair = (run.config["model"]["name"], run.config["task"]["name"])
    if pair not in {(tree["model"]["name"], tree["task"]["name"]) for tree in wanted.values()}:
        return f"{pair[0]} on {pair[1]} is not part of this study"
    nearest = min((differences(run.config, tree) for tree in wanted.values()), key=len)
    return ", ".join(nearest)


def _describe(run: Run) -> dict[str, Any]:
    config, about = run.config, run.about
    return {
        "run": run.id,
        "label": about["label"],
        "model": config["model"]["name"],
        "rule": config["rule"]["name"],
        "rule_label": about["rule_label"],
        "task": config["task"]["name"],
        "task_label": about["task_label"],
        "out_ln": config["model"].get("out_ln"),
        "variant": about["variant"],
        "seed": config["seed"],
        "scale": config["scale"],
        "epochs": config["epochs"],
        "steps": about["steps"],
        "batch": config["batch_size"],
        "lr": config["optimiser"]["lr"],
        "samples": about["samples"],
        "depth": about["depth"],
        "width": about["width"],
        "alpha": about["alpha"],
        "probe_size": about["probe_size"],
        "model_alpha": config["model"].get("alpha"),
    }
