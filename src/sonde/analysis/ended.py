"""Stored runs that a statement may rest on: those that ended, one for each seed, and what code made them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from sonde.analysis.configurations import all_described
from sonde.analysis.evidence import RUNS_SCHEMA
from sonde.core.errors import SondeError
from sonde.core.run_ids import differing
from sonde.store.schemas import ABOUT
from sonde.store.stored import WATCHED, Run, Runs


def lines(runs: Sequence[Run]) -> pl.DataFrame:
    """One line per run: what it was, as figures and findings name it."""
    return pl.DataFrame([_line(run) for run in runs], schema=RUNS_SCHEMA)


def _line(run: Run) -> dict[str, Any]:
    """A plugin's option of a known name may be of any type: it says nothing here."""
    config, model, rule = run.config, run.config["model"], run.config["rule"]
    reader = "cls" if model["name"] == "vit_mini" else "flat"  # of 0.1.0, which said nothing
    width = run.about["width"]
    return {key: run.about[key] for key in ABOUT} | {
        "width": None if width is None else int(width),
        "run": run.id,
        "model": model["name"],
        "rule": rule["name"],
        "task": config["task"]["name"],
        "out_ln": _if(bool, model.get("out_ln")),
        "seed": config["seed"],
        "scale": config["scale"],
        "epochs": config["epochs"],
        "batch": config["batch_size"],
        "lr": _if(float, config["optimiser"].get("lr")),
        "model_alpha": _if(float, model.get("alpha")),
        "input_norm": _if(str, rule.get("input_norm")),
        "reader": _if(str, run.about.get("reader", reader)),
        "output": _if(str, model.get("output", "relu")) if model["name"] in ("plain_mlp", "res_mlp") else None,
    }


def _if(kind: type, value: Any) -> Any:
    """The value where it is of that type; a whole number is a number."""
    if kind is float and type(value) is int and abs(value) < 2**53:
        return float(value)
    return value if type(value) is kind else None


def complete(stored: Runs) -> tuple[list[Run], dict[str, str]]:
    """The runs that came to their end, and the others: run → why it is left out."""
    ended = [run for run in stored.runs if run.manifest.state == "complete"]
    left_out = {
        run.id: "; ".join(part for part in (f"it is {run.standing.state}", run.standing.why) if part)
        for run in stored.runs
        if run.manifest.state != "complete"
    }
    return ended, left_out | {run.id: WATCHED for run in stored.watched} | stored.broken


def refuse_none(runs: Sequence[Run], left_out: Mapping[str, str]) -> None:
    """There has to be a run that ended."""
    if not runs:
        why = "; ".join(f"{run}: {reason}" for run, reason in left_out.items()) or "it is empty"
        raise SondeError(f"the store holds no complete run ({why}): finish one with `sonde run` or `sonde train`")


def by_seed(runs: Iterable[Run], label: str) -> dict[int, Run]:
    """The runs in the order of their seeds.  A seed counts once: two runs of it are refused, and told apart."""
    one_a_seed: dict[int, Run] = {}
    for run in runs:
        twin = one_a_seed.setdefault(run.config["seed"], run)
        if twin is not run:
            fields = differing(all_described((twin, run)).values())
            if fields:
                apart, fix = ", ".join(fields), "keep one of them with --only key=value"
            else:
                apart, fix = f"nothing but their id: {twin.id}, {run.id}", "move the copy out of the store"
            raise SondeError(
                f"{label} has several runs of seed {run.config['seed']}, which differ in {apart}: "
                f"a seed counts once; {fix}"
            )
    return dict(sorted(one_a_seed.items()))


NOT_RECORDED = "not recorded"
UNCOMMITTED = "uncommitted changes"


def made_with(runs: Iterable[Run]) -> dict[str, list[str]]:
    """Version and commit in words → the runs; a run that several made names them in order."""
    found: dict[str, list[str]] = {}
    for run in runs:
        sessions = dict.fromkeys(_maker(session.get("environment") or {}) for session in run.manifest.sessions)
        found.setdefault(", then ".join(sessions) or NOT_RECORDED, []).append(run.id)
    return found


def remark(made: Mapping[str, list[str]]) -> str | None:
    """That several versions made the runs, or one that no commit holds; None where there is nothing to say."""
    if len(made) > 1:
        counted = "; ".join(f"{maker} ({len(runs)} run{'s' * (len(runs) > 1)})" for maker, runs in made.items())
        return f"the runs were not all made with the same code: {counted}"
    for maker in made:
        if UNCOMMITTED in maker:
            return f"made with {maker}: which changes is not recorded, so the code may differ between runs"
    return None


def _maker(environment: Mapping[str, Any]) -> str:
    packages, git = environment.get("packages") or {}, environment.get("git")
    if not packages:
        return NOT_RECORDED
    commit = "no commit"
    if git:
        commit = f"commit {str(git.get('commit'))[:10]}{f' with {UNCOMMITTED}' if git.get('dirty') else ''}"
    return f"sonde {packages.get('sonde', '?')} ({commit}), torch {packages.get('torch', '?')}"
