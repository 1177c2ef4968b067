"""What a study is: the runs it needs, those of a store that belong to it, and what it finds in their rows."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from sonde.analysis.audit import Judge
from sonde.analysis.ended import lines
from sonde.analysis.evidence import Evidence
from sonde.analysis.readings import Readings, RunReadings
from sonde.config import RunConfig, to_tree
from sonde.core.errors import SondeError
from sonde.core.run_ids import config_digest, differences, identity, recipe_of, without
from sonde.core.seed_statistics import over_seeds
from sonde.store.stored import WATCHED, Run, Runs


@dataclass(frozen=True)
class Gathered:
    """The stored runs of a study, as evidence for figures, and what the store holds beside them: run → why."""

    stored: Runs
    evidence: Evidence
    left_out: dict[str, str]
    judge: Judge  # of the whole store
    beside: Runs  # complete runs of another recipe that the study trains, too


@dataclass(frozen=True, kw_only=True)
class StudyFinding:
    """A sentence computed from rows, the numbers in it, and the runs they come from."""

    sentence: str
    shown: dict[str, str]  # heading → cell, for a table of the study's findings
    numbers: dict[str, Any]
    runs: tuple[str, ...]
    seeds: tuple[int | None, ...]


@dataclass(frozen=True, kw_only=True)
class Study:
    """A question, the configurations that answer it, and the answer's computation."""

    question: str
    seeds: dict[str, tuple[int, ...]]  # by default, at each scale
    configs: Callable[[str, Sequence[int]], list[RunConfig]]  # (scale, seeds) → complete configurations
    findings: Callable[[Gathered], list[StudyFinding]]
    beside: Callable[[str, Sequence[int]], list[RunConfig]] = lambda scale, seeds: []
    """Runs of another recipe, for findings and for figures that ask for them; trained with the study as it is."""


class NoRuns(SondeError):
    """The store holds no complete run of the study, but others: run → why it is not one."""

    def __init__(self, message: str, left_out: Mapping[str, str]) -> None:
        super().__init__(message)
        self.left_out = left_out


def gather(
    stored: Runs,
    configs: Sequence[RunConfig],
    source: str,
    judge: Judge | None = None,
    *,
    guests: bool = False,
    beside: Sequence[RunConfig] = (),
) -> Gathered:
    """The stored, complete runs of the given configurations; with `guests`, those of guest rules beside them.

    Runs of `beside` are handed on apart from the evidence: most figures are of the study's own runs.
    """
    wanted = {config.id: config for config in configs}
    inside = [run for run in stored.runs if _is_one_of(run, wanted) and run.manifest.state == "complete"]
    several: dict[str, str] = {}
    if guests and inside:
        more, several = _guests_beside(stored, configs)
        ids = {run.id for run in inside} | more
        inside = [run for run in stored.runs if run.id in ids]
    chosen, why = {run.id for run in inside}, _Why(wanted)
    left_out = {run.id: several.get(run.id) or why(run) for run in stored.runs if run.id not in chosen}
    left_out |= {run.id: WATCHED for run in stored.watched} | stored.broken
    aside = {config.id: config for config in beside if config.id not in chosen}
    more_runs = [run for run in stored.runs if _is_one_of(run, aside) and run.manifest.state == "complete"]
    left_out = {run: why for run, why in left_out.items() if run not in {one.id for one in more_runs}}
    if not inside:
        reasons = "; ".join(f"{run}: {why}" for run, why in list(left_out.items())[:3]) or "the store is empty"
        raise NoRuns(f"{source} holds no complete run of this study ({reasons})", left_out)
    runs = lines(inside)
    rows = stored.rows.join(runs.select("run"), on="run", how="semi") if left_out else stored.rows
    more_rows = stored.rows.filter(pl.col("run").is_in([run.id for run in more_runs]))
    others = Evidence(more_rows, lines(more_runs), source) if more_runs else None
    return Gathered(
        Runs(rows, inside),
        Evidence(rows, runs, source, beside=others),
        left_out,
        judge or Judge(stored),
        Runs(more_rows, more_runs),
    )


def _is_one_of(run: Run, wanted: Mapping[str, RunConfig]) -> bool:
    """Whether a stored run is a wanted one: by its whole configuration, since somebody may choose an id."""
    config = wanted.get(run.id)
    return config is not None and config.digest == config_digest(run.config)


def _guests_beside(stored: Runs, configs: Sequence[RunConfig]) -> tuple[set[str], dict[str, str]]:
    """Complete runs that differ from a wanted one in nothing but a guest rule; and those of which there are several.

    A guest that changed, or was trained with several options, is several rules of one name.
    """
    strangers = [run for run in stored.runs if "source" in run.config["rule"] and run.manifest.state == "complete"]
    recipes = {identity(without(to_tree(config), ("rule",))) for config in configs} if strangers else set()
    of_rule: dict[str, dict[str, list[str]]] = {}
    for run in strangers:
        rule = run.config["rule"]
        if identity(without(run.config, ("rule",))) in recipes:
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


NO_PART = "is not part of this study"


class _Why:
    """Why a run is left out.  Seeds make no difference, so every recipe is looked at once."""

    def __init__(self, wanted: Mapping[str, RunConfig]) -> None:
        self.wanted = wanted
        self.seeds = {config.seed for config in wanted.values()}
        self.recipes = [to_tree(one) for one in {config.recipe: config for config in wanted.values()}.values()]
        self.pairs = {(tree["model"]["name"], tree["task"]["name"]) for tree in self.recipes}
        self.nearest: dict[str, str] = {}

    def __call__(self, run: Run) -> str:
        if _is_one_of(run, self.wanted):
            return f"it is {run.standing.state}"
        pair = (run.config["model"]["name"], run.config["task"]["name"])
        if pair not in self.pairs:
            return f"{pair[0]} on {pair[1]} {NO_PART}"
        recipe, seed = recipe_of(run.config), run.config["seed"]
        if recipe not in self.nearest:
            nearest = min((differences(run.config, tree) for tree in self.recipes), key=len)
            self.nearest[recipe] = ", ".join(nearest)
        if self.nearest[recipe]:
            return self.nearest[recipe]
        if seed not in self.seeds:
            return f"seed {seed} was not asked for"
        return "its configuration is the same, but it is stored under another id"


def stream_and_gradient(rows: RunReadings) -> dict[str, float]:
    """Of a classifying run: its accuracy, and what became of the residual stream and the BP gradient at the top."""
    top = rows.run["depth"]
    stream, per_error = (rows.change(metric, layer=top) for metric in ("hidden_norm", "grad_per_error"))
    return {
        "test_acc": rows.value("test_acc", epoch=rows.run["epochs"]),
        "stream_change": stream,
        "gradient_change": rows.change("grad_norm", layer=top),
        "per_error_change": per_error,
        "scale_free_change": per_error * stream,
    }


TOLD = ("gradient_change", "per_error_change", "scale_free_change")
"""What `verdicts.gradient_change` tells."""


def over_runs(
    runs: pl.DataFrame, readings: Readings, measure: Callable[[RunReadings], dict[str, float]]
) -> dict[str, dict[str, Any]]:
    """Mean, spread and n over the runs of each number, each run being one seed; a seed that counts twice is refused."""
    seeds = runs["seed"].drop_nulls()
    if seeds.n_unique() < seeds.len():
        raise SondeError(
            f"several runs of one seed would be averaged ({', '.join(runs['run'])}): keep one with --only key=value"
        )
    measured = [measure(RunReadings(readings, run)) for run in runs.iter_rows(named=True)]
    rows = pl.DataFrame(
        [(name, value, not math.isnan(value)) for numbers in measured for name, value in numbers.items()],
        schema={"name": pl.String, "value": pl.Float64, "defined": pl.Boolean},
        orient="row",
    )
    found = over_seeds(rows, "name").with_columns(pl.col("mean").fill_null(math.nan))
    return {row["name"]: row for row in found.iter_rows(named=True)}


def own_n(summary: Mapping[str, Any], n: int) -> str:
    """The n of a mean, where fewer than the n runs of its line have a value; one that is undefined says that."""
    return f" (n = {summary['n']})" if 0 < summary["n"] < n else ""


def means(over: Mapping[str, Mapping[str, Any]], n: int) -> dict[str, Any]:
    """Every mean by its name, followed by its own n, `name_n`, where that is not n."""
    found: dict[str, Any] = {}
    for name, summary in over.items():
        found[name] = summary["mean"]
        if summary["n"] != n:
            found[f"{name}_n"] = summary["n"]
    return found
