"""Diagnoses of a training run: what is wrong, where, since when, and what to try.

All of them are asked, and ordered by cause: a symptom follows the finding that explains it.
"""

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from sonde.analysis.audit import audit, read_for_audit
from sonde.analysis.diagnosis.finding import LEVELS, Diagnosis, Finding, Findings
from sonde.analysis.diagnosis.flow_symptoms import FLOW_SYMPTOMS
from sonde.analysis.diagnosis.loop_faults import LOOP_FAULTS
from sonde.analysis.diagnosis.network_faults import NETWORK_FAULTS
from sonde.analysis.diagnosis.pace_faults import PACE_FAULTS
from sonde.analysis.diagnosis.run_evidence import (
    TRAINED_METRICS,
    Audited,
    RunEvidence,
    evidence_of_trained,
    evidence_of_watched,
)
from sonde.analysis.diagnosis.task_faults import TASK_FAULTS
from sonde.analysis.diagnosis.trained_faults import TRAINED_FAULTS
from sonde.analysis.runs import complete
from sonde.core.errors import SondeError, nearest
from sonde.store.files import Place
from sonde.store.listing import find_run
from sonde.store.load import load, load_some
from sonde.store.run import Runs

_TABLES = (TASK_FAULTS, LOOP_FAULTS, NETWORK_FAULTS, PACE_FAULTS, FLOW_SYMPTOMS, TRAINED_FAULTS)

DIAGNOSES: dict[str, Diagnosis] = {one.name: one for table in _TABLES for one in table}
"""By name, causes before their symptoms."""

_FORMER_NAMES = {one.former_name: one for one in DIAGNOSES.values() if one.former_name}


def diagnosis_named(name: str) -> Diagnosis:
    """The diagnosis of that name, or of that former name."""
    known = DIAGNOSES.get(name) or _FORMER_NAMES.get(name)
    if known is None:
        raise SondeError(f"no diagnosis is named {name!r}: {nearest(name, DIAGNOSES)}")
    return known


def diagnose(evidence: RunEvidence) -> Findings:
    """Findings, the most important first; a symptom follows the cause that explains it."""
    found = {name: finding for name, one in DIAGNOSES.items() if (finding := one.find(evidence)) is not None}
    found = {
        name: replace(finding, epoch=evidence.epochs.get(finding.step)) if finding.epoch is None else finding
        for name, finding in found.items()
    }
    if evidence.steps == 0:  # before training there is no pace
        found = {
            name: one for name, one in found.items() if not DIAGNOSES[name].is_pace or name == "missing_activation"
        }
    sure = {name for name, finding in found.items() if finding.level == "certain"}
    hiding = [name for name in found if DIAGNOSES[name].hides_pace]
    if sure & set(hiding):
        found = {name: finding for name, finding in found.items() if not DIAGNOSES[name].is_pace or name in sure}
    if sure or any(found[name].level != "note" for name in hiding):
        found.pop("lr_too_low", None)
        found.pop("too_few_steps", None)
    if "masked_growth" in found:  # the same growth under another name
        found.pop("exploding_gradient", None)
    if sure - {"masked_growth"} and "masked_growth" in found and "masked_growth" not in sure:
        found.pop("masked_growth")
    causes = sorted(
        (finding for name, finding in found.items() if _cause(name, found) is None),
        key=lambda finding: -LEVELS.index(finding.level),
    )
    ordered = []
    for cause in causes:
        ordered.append(cause)
        ordered += [
            replace(finding, explained_by=cause.name)
            for name, finding in found.items()
            if _cause(name, found) == cause.name
        ]
    return Findings(sorted(ordered, key=lambda finding: finding.level == "note"), about=evidence.length)


def _cause(name: str, found: Mapping[str, Finding]) -> str | None:
    """The name of the finding that explains this one: the one of the highest level, then the first in the table."""
    causes = [cause for cause, one in DIAGNOSES.items() if cause in found and name in one.explains]
    causes = [cause for cause in causes if found[cause].level != "note"]
    surest = max(causes, key=lambda cause: LEVELS.index(found[cause].level), default=None)
    return None if surest is None else _cause(surest, found) or surest


def diagnose_store(root: Place, name: str | None) -> tuple[dict[str, Findings], dict[str, str]]:
    """Findings of one run, or of all runs, by id; and the runs that cannot be diagnosed: run → why.

    A trained run is compared with those of its recipe, so all of them are read.
    """
    wanted = None if name is None else find_run(root, name)
    known = load(root, metrics=())
    if not (known.runs or known.watched or known.broken):
        raise SondeError(
            f"{root} holds no runs: `sonde.watch(model, optimizer)` in a training loop makes one, or `sonde run`"
        )
    watched = [run.id for run in known.watched if wanted in (None, run.id)]
    found: dict[str, Findings] = {}
    if watched:
        stored = load_some(root, watched)
        found = {run.id: diagnose(evidence_of_watched(run, stored.rows)) for run in stored.watched}
    left_out = dict(known.broken)
    if known.runs and wanted not in found:
        stored = _read_trained(root)
        ended, left_out = complete(stored)
        if ended or not found or any(run.manifest.state == "diverged" for run in stored.runs):
            trained, left_out = diagnose_trained(stored)
            found |= {id: findings for id, findings in trained.items() if wanted in (None, id)}
    if wanted is not None and wanted not in found:
        raise SondeError(f"{wanted} cannot be diagnosed: {left_out.get(wanted, 'it was not found')}")
    return found, {} if wanted is not None else left_out


def _read_trained(root: Place) -> Runs:
    """The store with the rows of an audit and those that the other diagnoses of trained runs read."""
    stored, also = read_for_audit(root), TRAINED_METRICS
    rows = stored.rows.filter(~pl.col("metric").is_in(also))
    return replace(stored, rows=pl.concat([rows, load(root, metrics=also).rows], how="diagonal"))


def diagnose_trained(stored: Runs) -> tuple[dict[str, Findings], dict[str, str]]:
    """Findings of the runs that Sonde trained, by id; and run → why it has none."""
    audited = audit(stored)
    found: dict[str, Findings] = {}
    runs = {run.id: run for run in stored.runs}
    rows = {id: part for (id,), part in stored.rows.partition_by("run", as_dict=True).items()}
    for rule in (rule for recipe in audited.recipes for rule in recipe.rules):
        cases = {one.run.id: Audited(rule=rule, run=one) for one in rule.runs}
        cases |= {one.run: Audited(rule=rule, run=None, diverged=one.epoch) for one in rule.diverged}
        for id, one in cases.items():
            found[id] = diagnose(evidence_of_trained(runs[id], rows.get(id, stored.rows.clear()), one))
    watched = {run.id for run in stored.watched}
    return found, {run: why for run, why in audited.left_out.items() if run not in watched}
