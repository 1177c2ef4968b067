"""What stored runs were made with: versions, commit, and whether the tree had changes that no commit holds."""

from collections.abc import Iterable, Mapping
from typing import Any

from sonde.store.load import Run

UNKNOWN = "not recorded"
CHANGED = "uncommitted changes"


def made_with(runs: Iterable[Run]) -> dict[str, list[str]]:
    """Version and commit in words → the runs; a run that several made names them in order."""
    found: dict[str, list[str]] = {}
    for run in runs:
        sessions = dict.fromkeys(
            _maker(session.get("environment") or {}) for session in run.manifest.sessions
        )
        found.setdefault(", then ".join(sessions) or UNKNOWN, []).append(run.id)
    return found


def remark(made: Mapping[str, list[str]]) -> str | None:
    """That several versions made the runs, or one that no commit holds; None where there is nothing to say."""
    if len(made) > 1:
        counted = "; ".join(
            f"{maker} ({len(runs)} run{'s' * (len(runs) > 1)})" for maker, runs in made.items()
        )
        return f"the runs were not all made with the same code: {counted}"
    for maker in made:
        if CHANGED in maker:
            return f"made with {maker}: which changes is not recorded, so the code may differ between runs"
    return None


def _maker(environment: Mapping[str, Any]) -> str:
    packages, git = environment.get("packages") or {}, environment.get("git")
    if not packages:
        return UNKNOWN
    commit = "no commit"
    if git:
        commit = f"commit {str(git.get('commit'))[:10]}{f' with {CHANGED}' if git.get('dirty') else ''}"
    return f"sonde {packages.get('sonde', '?')} ({commit}), torch {packages.get('torch', '?')}"
