"""From stored runs to the evidence of a study: which runs belong to it, and which are left out and why."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from sonde.audit.judge import Judge
from sonde.config import RunConfig, to_tree
from sonde.errors import SondeError
from sonde.figures.evidence import RUNS_SCHEMA, Evidence
from sonde.store.load import WATCHED, Run, Runs
from sonde.studies.narrow import differences


class NoRuns(SondeError):
    """The store holds no complete run of the study."""


@dataclass(frozen=True)
class Gathered:
    """The stored runs of a study, as evidence for figures, and what the store holds beside them: run → why."""

    stored: Runs
    evidence: Evidence
    left_out: dict[str, str]
    judge: Judge  # of the whole store


def gather(
    stored: Runs,
    configs: Sequence[RunConfig],
    source: str,
    judge: Judge | None = None,
    *,
    guests: bool = False,
) -> Gathered:
    """The stored, complete runs of the given configurations; with `guests`, those of guest rules beside them."""
    wanted = {config.id: config for config in configs}
    inside = [run for run in stored.runs if run.id in wanted and run.manifest.state == "complete"]
    several: dict[str, str] = {}
    if guests and inside:
        more, several = _guests_beside(stored, configs)
        ids = {run.id for run in inside} | more
        inside = [run for run in stored.runs if run.id in ids]
    chosen, why = {run.id for run in inside}, _Why(wanted)
    left_out = {run.id: several.get(run.id) or why(run) for run in stored.runs if run.id not in chosen}
    left_out |= {run.id: WATCHED for run in stored.watched}
    if not inside:
        reasons = (
            "; ".join(f"{run}: {why}" for run, why in list(left_out.items())[:3]) or "the store is empty"
        )
        raise NoRuns(f"{source} holds no complete run of this study ({reasons})")
    runs = pl.DataFrame([_describe(run) for run in inside], schema=RUNS_SCHEMA)
    rows = stored.rows.join(runs.select("run"), on="run", how="semi") if left_out else stored.rows
    return Gathered(Runs(rows, inside), Evidence(rows, runs, source), left_out, judge or Judge(stored))


def _guests_beside(stored: Runs, configs: Sequence[RunConfig]) -> tuple[set[str], dict[str, str]]:
    """Complete runs that differ from a wanted one in nothing but a guest rule; and those of which there are several.

    A guest that changed, or was trained with several options, is several rules of one name.
    """
    strangers = [
        run for run in stored.runs if "source" in run.config["rule"] and run.manifest.state == "complete"
    ]
    recipes = {_without_rule(to_tree(config)) for config in configs} if strangers else set()
    of_rule: dict[str, dict[str, list[str]]] = {}
    for run in strangers:
        rule = run.config["rule"]
        if _without_rule(run.config) in recipes:
            of_rule.setdefault(rule["name"], {}).setdefault(json.dumps(rule), []).append(run.id)
    alone = {run for forms in of_rule.values() if len(forms) == 1 for runs in forms.values() for run in runs}
    several = {
        run: f"there are {len(forms)} rules called {name}: choose one with --set rule+=file.py:{name}"
        for name, forms in of_rule.items()
        if len(forms) > 1
        for runs in forms.values()
        for run in runs
    }
    return alone, several


def _without_rule(tree: Mapping[str, Any]) -> str:
    return json.dumps({**tree, "rule": None}, sort_keys=True)


class _Why:
    """Why a run is left out.  Seeds make no difference, so every recipe is looked at once."""

    def __init__(self, wanted: Mapping[str, RunConfig]) -> None:
        self.ids = wanted.keys()
        self.recipes = [
            to_tree(one) for one in {config.recipe: config for config in wanted.values()}.values()
        ]
        self.pairs = {(tree["model"]["name"], tree["task"]["name"]) for tree in self.recipes}
        self.known: dict[str, str] = {}

    def __call__(self, run: Run) -> str:
        if run.id in self.ids:
            return f"it is {run.manifest.state}"
        pair = (run.config["model"]["name"], run.config["task"]["name"])
        if pair not in self.pairs:
            return f"{pair[0]} on {pair[1]} is not part of this study"
        key = recipe_of(run.config)
        if key not in self.known:
            found = [differences(run.config, tree) for tree in self.recipes]
            nearest = min(found, key=len)
            self.known[key] = ", ".join(nearest)
        return self.known[key]


def recipe_of(tree: dict[str, Any]) -> str:
    """Equal for configurations that differ in nothing but the seed."""
    return json.dumps({**tree, "seed": None}, sort_keys=True)


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
        "reader": about.get(
            "reader", "cls" if config["model"]["name"] == "vit_mini" else "flat"
        ),  # 0.1.0 said nothing
        "input_norm": config["rule"].get("input_norm"),
    }
