"""Runs of a store, diagnosed: watched ones by their rows, trained ones by their rows and their audit."""

from dataclasses import replace

import polars as pl

from sonde.analysis.audit import audit, read
from sonde.analysis.diagnosis.diagnose import diagnose
from sonde.analysis.diagnosis.finding import Findings
from sonde.analysis.diagnosis.signs import Audited, Signs
from sonde.analysis.diagnosis.trained_signs import LAYERS, WHOLE, trained_signs
from sonde.analysis.runs import complete
from sonde.core.errors import SondeError
from sonde.store.files import Place
from sonde.store.listing import find
from sonde.store.load import load, load_some
from sonde.store.run import Run, Runs


def diagnosed(root: Place, name: str | None) -> tuple[dict[str, Findings], dict[str, str]]:
    """Findings of one run, or of every one, by id; and the runs that cannot be diagnosed: run → why.

    A trained run is judged beside those of its recipe, so all of them are read.
    """
    wanted = None if name is None else find(root, name)
    known = load(root, metrics=())
    if not (known.runs or known.watched or known.broken):
        raise SondeError(
            f"{root} holds no runs: `sonde.watch(model, optimizer)` in a training loop makes one, or `sonde run`"
        )
    watched = [run.id for run in known.watched if wanted in (None, run.id)]
    found: dict[str, Findings] = {}
    if watched:
        stored = load_some(root, watched)
        found = {run.id: diagnose(signs_of(run, stored.rows)) for run in stored.watched}
    left_out = dict(known.broken)
    if known.runs and wanted not in found:
        stored = _read_trained(root)
        ended, left_out = complete(stored)
        if ended or not found or any(run.manifest.state == "diverged" for run in stored.runs):
            trained, left_out = of_trained(stored)
            found |= {id: findings for id, findings in trained.items() if wanted in (None, id)}
    if wanted is not None and wanted not in found:
        raise SondeError(f"{wanted} cannot be diagnosed: {left_out.get(wanted, 'it was not found')}")
    return found, {} if wanted is not None else left_out


def _read_trained(root: Place) -> Runs:
    """The store with the rows of an audit, and those that tell whether a run learned and what reached its layers."""
    stored, also = read(root), (*WHOLE, *LAYERS)
    rows = stored.rows.filter(~pl.col("metric").is_in(also))
    return replace(stored, rows=pl.concat([rows, load(root, metrics=also).rows], how="diagonal"))


def signs_of(run: Run, rows: pl.DataFrame) -> Signs:
    """What a store holds of a watched run."""
    own = rows.filter(pl.col("run") == run.id)
    steps = max(run.manifest.step or 0, 0 if own.is_empty() else int(str(own["step"].max())) + 1)
    return Signs(rows=own, facts=run.facts, steps=steps, trials=run.facts.get("experiments"))


def of_trained(stored: Runs) -> tuple[dict[str, Findings], dict[str, str]]:
    """Findings of the runs that Sonde trained, and why the others have none."""
    audited = audit(stored)
    found: dict[str, Findings] = {}
    runs = {run.id: run for run in stored.runs}
    rows = {id: part for (id,), part in stored.rows.partition_by("run", as_dict=True).items()}
    for rule in (rule for recipe in audited.recipes for rule in recipe.rules):
        cases = {one.run.id: Audited(rule=rule, run=one) for one in rule.runs}
        cases |= {one.run: Audited(rule=rule, run=None, diverged=one.epoch) for one in rule.diverged}
        for id, one in cases.items():
            found[id] = diagnose(trained_signs(runs[id], rows.get(id, stored.rows.clear()), one))
    watched = {run.id for run in stored.watched}
    return found, {run: why for run, why in audited.left_out.items() if run not in watched}
