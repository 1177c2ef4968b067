"""The watched runs of a report: what each was, in words, and its rows."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from sonde.cli.sessions import place_of
from sonde.cli.watched_evidence import evidence
from sonde.diagnosis.diagnose import diagnose
from sonde.report.watched import WatchedPart
from sonde.store.load import Runs, WatchedRun

NAMED = 8


def watched_parts(stored: Runs) -> list[WatchedPart]:
    """Every watched run, the newest first."""
    return [
        _part(run, stored.rows.filter(pl.col("run") == run.id)) for run in reversed(_by_time(stored.watched))
    ]


def _by_time(runs: Sequence[WatchedRun]) -> list[WatchedRun]:
    return sorted(runs, key=lambda run: str((run.manifest.sessions or [{}])[0].get("started", "")))


def _part(run: WatchedRun, rows: pl.DataFrame) -> WatchedPart:
    facts = run.facts
    session = (run.manifest.sessions or [{}])[0]
    steps = (
        run.manifest.step
        if run.manifest.state != "unfinished"
        else len(rows) and int(str(rows["step"].max()))
    )
    about = [
        f"{run.about['model']} with {run.about['parameters']:,} parameters, {steps} steps",
        f"begun {session.get('started', 'at an unknown time')} {place_of(session)}".strip(),
    ]
    if "values" in run.about:
        about.append(f"values {run.about['values']}")
    return WatchedPart(
        id=run.id,
        label=run.label,
        about="; ".join(about) + ".",
        state=run.manifest.state,
        message=run.manifest.message,
        remarks=[*_nonfinite(rows), *_remarks(facts)],
        types={module["name"]: module["type"] for module in facts.get("modules", [])},
        rows=rows,
        findings=[finding.as_dict() for finding in diagnose(evidence(run, rows))],
    )


def _nonfinite(rows: pl.DataFrame) -> list[str]:
    what = {1.0: "output", 2.0: "gradient", 3.0: "loss"}
    found = rows.filter(pl.col("metric") == "nonfinite")
    return [
        f"Not finite since step {row['step']}: "
        + (row["reason"] or f"the {what[row['value']]} of {row['module'] or 'the model'} first")
        + "."
        for row in found.iter_rows(named=True)
    ]


def _remarks(facts: dict[str, Any]) -> list[str]:
    parameters, modules = facts.get("parameters", []), facts.get("modules", [])
    unseen = {module["name"]: module["reason"] for module in modules if not module["calls"]}
    said = {
        "In no optimiser": [p["name"] for p in parameters if p["in_optimiser"] is False],
        "Ask for no gradient": [p["name"] for p in parameters if not p["requires_grad"]],
        "In the other mode than the model": facts.get("in_the_other_mode", []),
    }
    said |= {reason.capitalize(): [n for n, r in unseen.items() if r == reason] for reason in unseen.values()}
    remarks = [f"{words}: {_listed(names)}." for words, names in said.items() if names]
    remarks += [
        f"One parameter under several names: {', '.join(names)}." for names in facts.get("shared", [])
    ]
    return remarks + (["Trained in eval mode."] if facts.get("training") is False else [])


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"
