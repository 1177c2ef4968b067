"""Findings as SARIF 2.1.0, which code hosts and editors read."""

from collections.abc import Mapping
from typing import Any

from sonde.analysis.diagnosis.finding import TEXTS, Finding, Findings

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVEL = {"note": "note", "likely": "warning", "certain": "error"}


def sarif(found: Mapping[str, Findings], version: str) -> dict[str, Any]:
    """One run of the tool over several training runs, by their ids."""
    names = sorted({finding.name for findings in found.values() for finding in findings})
    rules = [
        {
            "id": name,
            "shortDescription": {"text": TEXTS[name].short},
            "fullDescription": {"text": TEXTS[name].why},
            "help": {"text": f"{TEXTS[name].remedy} {TEXTS[name].reference}"},
        }
        for name in names
    ]
    results = [_result(run, finding, names) for run, findings in found.items() for finding in findings]
    driver = {"name": "sonde", "version": version, "rules": rules}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _result(run: str, finding: Finding, names: list[str]) -> dict[str, Any]:
    places = finding.modules or ("(model)",)
    return {
        "ruleId": finding.name,
        "ruleIndex": names.index(finding.name),
        "level": LEVEL[finding.level],
        "message": {"text": " ".join([finding.short, *finding.evidence, f"Remedy: {finding.remedy}"])},
        "locations": [
            {"logicalLocations": [{"fullyQualifiedName": f"{run}/{place}", "kind": "module"} for place in places]}
        ],
        "properties": {
            "run": run,
            "step": finding.step,
            "epoch": finding.epoch,
            "explained_by": finding.explained_by,
        },
    }
