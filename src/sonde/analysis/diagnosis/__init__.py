"""Diagnoses of a training run: what is wrong, where, since when, and what to try.

All of them are asked, and ordered by cause: a symptom follows the finding that explains it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import polars as pl

from sonde.analysis.diagnosis.finding import LEVELS, Diagnosis, Finding, Findings
from sonde.analysis.diagnosis.flow_symptoms import FLOW_SYMPTOMS
from sonde.analysis.diagnosis.loop_faults import LOOP_FAULTS
from sonde.analysis.diagnosis.network_faults import NETWORK_FAULTS
from sonde.analysis.diagnosis.pace_faults import PACE_FAULTS
from sonde.analysis.diagnosis.run_evidence import (
    HELPS,
    TRAINED_METRICS,
    RunEvidence,
    evidence_of_trained,
    evidence_of_watched,
)
from sonde.analysis.diagnosis.run_record import Audited
from sonde.analysis.diagnosis.scale_faults import SCALE_FAULTS
from sonde.analysis.diagnosis.setup_faults import SETUP_FAULTS
from sonde.analysis.diagnosis.spikes import SPIKES
from sonde.analysis.diagnosis.task_faults import TASK_FAULTS
from sonde.analysis.diagnosis.trained_faults import TRAINED_FAULTS
from sonde.analysis.runs import complete
from sonde.core.errors import SondeError, nearest
from sonde.store.files import Place
from sonde.store.listing import find_run
from sonde.store.load import load, load_some
from sonde.store.run import Runs

_TABLES = (
    TASK_FAULTS,
    LOOP_FAULTS,
    SETUP_FAULTS,
    SCALE_FAULTS,
    NETWORK_FAULTS,
    PACE_FAULTS,
    FLOW_SYMPTOMS,
    SPIKES,
    TRAINED_FAULTS,
)

DIAGNOSES: dict[str, Diagnosis] = {one.name: one for table in _TABLES for one in table}
"""By name, causes before their symptoms."""

_FORMER_NAMES = {one.former_name: one for one in DIAGNOSES.values() if one.former_name}


def diagnosis_named(name: str) -> Diagnosis:
    """The diagnosis of that name, or of that former name."""
    known = DIAGNOSES.get(name) or _FORMER_NAMES.get(name)
    if known is None:
        raise SondeError(f"no diagnosis is named {name!r}: {nearest(name, DIAGNOSES)}")
    return known


_HARMS = -0.05  # score that a harmful remedy adds
_WEAK = frozenset({"lr_too_low", "too_few_steps", "masked_growth"})  # beside a fault that is certain
_BUCKET = 0.2  # remedies whose scores differ by less help as much


def diagnose(evidence: RunEvidence) -> Findings:
    """Findings, the most important first; a symptom follows the cause that explains it.

    Causes are compared: by level, then by how much the remedy helped a copy of the model.
    """
    found = {name: finding for name, one in DIAGNOSES.items() if (finding := one.find(evidence)) is not None}
    found = _without_rest(_without_rivals(_without_pace(found, evidence)))
    explained = {name: cause for name in found if (cause := _cause(name, found)) is not None}
    causes = sorted((found[name] for name in found if name not in explained), key=_importance)
    ordered = [
        finding
        for cause in causes
        for finding in (
            cause,
            *(_as_symptom(found[name], cause.name) for name, known in explained.items() if known == cause.name),
        )
    ]
    return Findings(
        sorted(ordered, key=lambda finding: finding.level == "note"),
        about=evidence.length,
        learning=evidence.learning,
        learned=evidence.is_sound,
        silent="" if "not_learning" in found else evidence.not_asked,
    )


def _importance(finding: Finding) -> tuple[int, bool, int]:
    """By level; then faults other than rates, if their remedy helps; then by gain."""
    gain = finding.gain or 0.0
    fixes = DIAGNOSES[finding.name].role == "cause" and gain >= HELPS
    return -LEVELS.index(finding.level), not fixes, -round(gain / _BUCKET)


def _as_symptom(finding: Finding, cause: str) -> Finding:
    """That nothing was learned, or that the loss jumps, is no news beside the reason, nor is a rate that only fits the
    fault.
    """
    known = finding.name == "not_learning" or DIAGNOSES[finding.name].role == "pace"
    known = known or (finding.name == "loss_spike" and not finding.modules)
    level = "note" if known else finding.level
    return replace(finding, explained_by=cause, level=level)


def _without_pace(found: dict[str, Finding], evidence: RunEvidence) -> dict[str, Finding]:
    """Findings about rates and steps are dropped before training, and beside faults that no rate fixes."""
    pace = _of_role(found, "pace")
    sure = _of_level(found, "certain")
    hiding = {name for name in found if DIAGNOSES[name].hides_pace} - _of_level(found, "note")
    dropped: set[str] = pace - {"missing_activation"} if evidence.steps == 0 else set()
    dropped |= pace - sure if sure & hiding else set()
    dropped |= _WEAK - sure if sure | hiding else set()
    return {name: found[name] for name in found if name not in dropped}


def _of_level(found: Mapping[str, Finding], level: str) -> set[str]:
    return {name for name in found if found[name].level == level}


def _without_rivals(found: dict[str, Finding]) -> dict[str, Finding]:
    """A cause is a note if its remedy harmed a copy and that of another helped; another rate, if another remedy helped
    as much.
    """
    gains = {name: finding.gain for name, finding in found.items() if finding.gain is not None}
    pace, best = _of_role(gains, "pace"), max(gains.values(), default=0.0)
    of_causes = max((gains[name] for name in gains.keys() - pace), default=0.0)
    harmful = {name for name in gains if best >= HELPS and gains[name] < _HARMS} & _of_level(found, "likely")
    needless = {name for name in pace if HELPS <= of_causes > gains[name] - _BUCKET}
    return found | {name: replace(found[name], level="note") for name in harmful | needless}


def _of_role(names: Iterable[str], role: str) -> set[str]:
    return {name for name in names if DIAGNOSES[name].role == role}


def _without_rest(found: dict[str, Finding]) -> dict[str, Finding]:
    """What is left as an explanation is dropped where another cause is found."""
    named = (one for one in found.values() if one.level != "note" and not one.is_rest)
    others = any(DIAGNOSES[one.name].role != "symptom" for one in named)
    return {name: one for name, one in found.items() if not (others and one.is_rest)}


def _explains(cause: str, symptom: str) -> bool:
    one, other = DIAGNOSES[cause], DIAGNOSES[symptom]
    return symptom in one.consequences or (one.role == "cause" and other.role == "symptom" and cause != symptom)


def _cause(name: str, found: Mapping[str, Finding]) -> str | None:
    """The name of the finding that explains this one: the one of the highest level, then the first in the table."""
    causes = [cause for cause in found if found[cause].level != "note" and _explains(cause, name)]
    surest = max(causes, key=lambda cause: LEVELS.index(found[cause].level), default=None)
    return None if surest is None else _cause(surest, found) or surest


def diagnose_store(root: Place, name: str | None) -> tuple[dict[str, Findings], dict[str, str]]:
    """Findings of one run, or of all runs, by id; and the runs that cannot be diagnosed: run → why.

    A trained run is compared with those of its recipe, so all of them are read.
    """
    known = load(root, metrics=())
    if not (known.runs or known.watched or known.broken):
        raise SondeError(
            f"{root} holds no runs: `sonde.watch(model, optimizer)` in a training loop makes one, or `sonde run`"
        )
    wanted = None if name is None else find_run(root, name)
    found = _diagnose_watched(root, [run.id for run in known.watched if wanted in (None, run.id)])
    left_out = dict(known.broken)
    if known.runs and wanted not in found:
        trained, left_out = _diagnose_ended(_read_trained(root), always=not found)
        found |= trained
    if wanted is None:
        return found, left_out
    if wanted not in found:
        raise SondeError(f"{wanted} cannot be diagnosed: {left_out.get(wanted, 'it was not found')}")
    return {wanted: found[wanted]}, {}


def _diagnose_watched(root: Place, watched: list[str]) -> dict[str, Findings]:
    if not watched:
        return {}
    stored = load_some(root, watched)
    return {run.id: diagnose(evidence_of_watched(run, stored.rows)) for run in stored.watched}


def _diagnose_ended(stored: Runs, *, always: bool) -> tuple[dict[str, Findings], dict[str, str]]:
    """Findings of trained runs, if one has ended (or `always`, which raises where there is none)."""
    ended, left_out = complete(stored)
    if ended or always or any(run.manifest.state == "diverged" for run in stored.runs):
        return diagnose_trained(stored)
    return {}, left_out


def _read_trained(root: Place) -> Runs:
    """The store with the rows of an audit and those that the other diagnoses of trained runs read."""
    from sonde.analysis.audit import read_for_audit  # not for watched runs

    stored, also = read_for_audit(root), TRAINED_METRICS
    rows = stored.rows.filter(~pl.col("metric").is_in(also))
    return replace(stored, rows=pl.concat([rows, load(root, metrics=also).rows], how="diagonal"))


def diagnose_trained(stored: Runs) -> tuple[dict[str, Findings], dict[str, str]]:
    """Findings of the runs that Sonde trained, by id; and run → why it has none."""
    from sonde.analysis.audit import audit

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
