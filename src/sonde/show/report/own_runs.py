"""Runs of no study: what they answer, task by task, and the figures of their recipes."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from sonde.analysis.audit import AuditCache, RecipeAudit, audit
from sonde.analysis.evidence import Evidence
from sonde.analysis.runs import evidence_lines
from sonde.core.errors import SondeError
from sonde.show.report.answers import of_recipe, of_settings
from sonde.show.report.audits import labels, network_in, task_of
from sonde.show.report.parts import Answer, Section
from sonde.store.run import Runs

MOST_DRAWN = 4  # recipes with figures; the charts have all of them


def own_sections(stored: Runs, judge: AuditCache, own: Collection[str], source: str) -> tuple[list[Section], list[str]]:
    """A section for every recipe of the runs in no study, the first of each task with an answer; and remarks."""
    try:
        found = audit(stored, cache=judge).recipes
    except SondeError:
        return [], []
    tasks: dict[str, list[RecipeAudit]] = {}
    for recipe in found:
        if {run for rule in recipe.rules for run in rule.ended} <= set(own) and _size(recipe):
            tasks.setdefault(task_of(recipe, stored), []).append(recipe)
    first, others = list[Section](), list[Section]()
    for task, recipes in tasks.items():
        names = labels(recipes, stored)
        answered = _answer(recipes, names, stored)
        pairs = sorted(zip(names, recipes, strict=True), key=lambda pair: -_size(pair[1]))
        for place, (name, recipe) in enumerate(pairs):
            network = network_in(recipe, stored)
            what = name if network in name else f"{network}, {name}"
            section = _section(recipe, what, task, stored, source, len(first) + len(others))
            (others if place else first).append(replace(section, answer=None if place else answered))
    kept = [*first, *others[: max(0, MOST_DRAWN - len(first))]]
    left = len(first) + len(others) - len(kept)
    said = f"{left} more recipes in no study have no figures here; charts, audit and runs have all of them"
    return kept, [said] if left else []


def _size(recipe: RecipeAudit) -> int:
    return sum(len(rule.runs) for rule in recipe.rules)


def _answer(recipes: Sequence[RecipeAudit], names: Sequence[str], stored: Runs) -> Answer | None:
    runs = {run.id: run for run in stored.runs}
    return of_recipe(recipes[0], runs) if len(recipes) == 1 else of_settings(recipes, names, runs)


def _section(recipe: RecipeAudit, what: str, task: str, stored: Runs, source: str, place: int) -> Section:
    ids = {run for rule in recipe.rules for run in rule.ids}
    runs = evidence_lines([run for run in stored.runs if run.id in ids])
    rows = stored.rows.join(runs.select("run"), on="run", how="semi")
    return Section(
        study="own runs",
        scale=f"{what} on {task}",
        question=f"own runs on {task}",
        findings=[],
        evidence=Evidence(rows, runs, source),
        wanted=len(ids),
        left_out={},
        place=f"own-{place}",
        figures="audit",
    )
