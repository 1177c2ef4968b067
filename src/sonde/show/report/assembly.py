"""Gather what a report says from a store: studies, audit, runs, and what is left out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

import sonde
from sonde.analysis.audit import Judge
from sonde.config import RunConfig, to_tree
from sonde.core.run_ids import config_digest, differences, recipe_of
from sonde.show.report.answers import answer
from sonde.show.report.audits import audit_part
from sonde.show.report.glossary import glossary
from sonde.show.report.own_runs import own_sections
from sonde.show.report.parts import Contents, Section
from sonde.show.report.runs import run_lines
from sonde.show.report.sweeps import sweep
from sonde.show.report.watched import watched_parts
from sonde.store.stored import Run, Runs
from sonde.studies import STUDIES, Study
from sonde.studies.study import Gathered, NoRuns, gather

SCALES = ("quick", "full")


def contents(stored: Runs, *, source: str, title: str) -> Contents:
    """Everything the store holds, study by study and run by run."""
    judge = Judge(stored)
    kept, remarks = _without_shared(_parts(stored, source, judge))
    found = [_section(part) for part in kept]
    belongs: dict[str, list[str]] = {run.id: [] for run in stored.runs}
    for section in found:
        for run in section.runs:
            belongs[run].append(section.anchor)
    named = {run for section in found for run in section.left_out}
    own, more = own_sections(stored, judge, {run for run, inside in belongs.items() if not inside}, source)
    nearest = _Nearest()
    return Contents(
        title=title,
        source=source,
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC by sonde {sonde.__version__}",
        runs=run_lines(stored.runs, belongs),
        rows=stored.rows,
        sections=[*found, *own],
        audit=audit_part(stored, judge),
        apart={run.id: nearest(run) for run in stored.runs if not belongs[run.id] and run.id not in named}
        | {run: why for run, why in stored.broken.items() if run not in named},
        remarks=[*remarks, *more],
        watched=watched_parts(stored),
        sweep=sweep(stored.runs, stored.rows),
        glossary=glossary(
            {run.config["rule"]["name"]: str(run.about["rule_label"]).partition(" (")[0] for run in stored.runs},
            stored.rows["metric"].unique().to_list(),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Part:
    """What the store holds of a study at one scale, before anything is computed from it."""

    name: str
    scale: str
    gathered: Gathered
    wanted: Sequence[RunConfig]  # those with the seeds that are stored

    @cached_property
    def runs(self) -> frozenset[str]:
        return frozenset(run.id for run in (*self.gathered.stored.runs, *self.gathered.beside.runs))


def _parts(stored: Runs, source: str, judge: Judge) -> list[_Part]:
    seeds: dict[str, set[int]] = {}
    for run in stored.runs:
        seeds.setdefault(recipe_of(run.config), set()).add(run.config["seed"])
    found = []
    for name, study in STUDIES.items():
        recipes = {scale: _recipes(study, scale) for scale in SCALES}
        same = recipes["quick"] == recipes["full"]
        for scale in SCALES[:1] if same else SCALES:
            stored_seeds = {seed for known in recipes[scale] for seed in seeds.get(known, ())}
            configs = study.configs(scale, sorted(stored_seeds))
            try:
                beside = study.beside(scale, sorted(stored_seeds))
                gathered = gather(stored, configs, source, judge, guests=True, beside=beside)
            except NoRuns:
                continue
            present = {run.config["seed"] for run in gathered.stored.runs}
            wanted = [config for config in configs if config.seed in present]
            words = "quick and full scale, the same recipe" if same else f"{scale} scale"
            found.append(_Part(name=name, scale=words, gathered=gathered, wanted=wanted))
    return found


def _section(part: _Part) -> Section:
    study, gathered = STUDIES[part.name], part.gathered
    findings = study.findings(gathered)
    return Section(
        study=part.name,
        scale=part.scale,
        question=study.question,
        findings=findings,
        answer=answer(part.name, gathered, findings),
        evidence=gathered.evidence,
        wanted=len(part.wanted),
        left_out=_incomplete(gathered, part.wanted),
        beside=[run.id for run in gathered.beside.runs],
    )


def _recipes(study: Study, scale: str) -> set[str]:
    return {recipe_of(to_tree(config)) for config in study.configs(scale, [0])}


def _incomplete(gathered: Gathered, wanted: Sequence[RunConfig]) -> dict[str, str]:
    ids = {config.id for config in wanted}
    return {run: why for run, why in gathered.left_out.items() if run in ids}


def _without_shared(parts: Sequence[_Part]) -> tuple[list[_Part], list[str]]:
    """Studies of which the store holds only what another study brought are named, not shown."""
    kept, remarks = [], []
    for part in parts:
        within = [other for other in parts if part.runs < other.runs]
        if within:
            remarks.append(
                f"{part.name} ({part.scale}): {len(part.runs)} of its {len(part.wanted)} runs are stored, "
                f"all of them shared with {within[0].name}; `sonde run {part.name}` trains the others"
            )
        else:
            kept.append(part)
    return kept, remarks


class _Nearest:
    """Why a run is in no study: what it lacks of the one it is nearest to.  Every recipe is looked at once."""

    def __init__(self) -> None:
        self.candidates = [
            (name, scale, config)
            for name, study in STUDIES.items()
            for scale in SCALES
            for config in study.configs(scale, [0])
        ]
        self.known: dict[str, tuple[list[str], str, str, RunConfig]] = {}

    def __call__(self, run: Run) -> str:
        key = recipe_of(run.config)
        if key not in self.known:
            found = [
                (differences(run.config, to_tree(config)), name, scale, config)
                for name, scale, config in self.candidates
            ]
            self.known[key] = min(found, key=lambda entry: len(entry[0]))
        telling, name, scale, config = self.known[key]
        if not telling and replace(config, seed=run.config["seed"]).digest == config_digest(run.config):
            why = f" ({run.standing.why})" if run.standing.why else ""
            return f"{name} ({scale} scale) leaves it out: it is {run.standing.state}{why}"
        why = ", ".join(telling) or "its configuration is the same, but it is stored under another id"
        return f"it belongs to no study; nearest is {name} ({scale} scale): {why}"
