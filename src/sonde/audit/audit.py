"""Audit a store: its complete runs by recipe, and by rule within each recipe."""

from collections.abc import Sequence
from dataclasses import dataclass

from sonde.audit.subject import Subject, subjects
from sonde.audit.thresholds import Thresholds
from sonde.audit.verdict import RuleAudit, judge
from sonde.compare.configurations import Flat, complete, described, differing, identity, shown, without
from sonde.compare.factor import Level, levels, options_of
from sonde.errors import SondeError
from sonde.store.load import Run, Runs

BESIDES = ("rule", "seed")
"""In these, runs of one recipe may differ."""


@dataclass(frozen=True, kw_only=True)
class RecipeAudit:
    """The rules that were run with one recipe."""

    title: str
    recipe: Flat  # what the runs share
    rules: list[RuleAudit]


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Every recipe, and the runs that are left out: run → why."""

    recipes: list[RecipeAudit]
    left_out: dict[str, str]
    thresholds: Thresholds


def audit(stored: Runs, thresholds: Thresholds | None = None) -> Audit:
    """Ask the four questions of every complete run."""
    thresholds = thresholds or Thresholds()
    runs, left_out = complete(stored)
    if not runs:
        why = "; ".join(f"{run}: {reason}" for run, reason in left_out.items()) or "it is empty"
        raise SondeError(
            f"the store holds no complete run ({why}): finish one with `sonde run` or `sonde train`"
        )
    seen = {subject.run: subject for subject in subjects(stored.rows, runs)}
    recipes: dict[str, list[Run]] = {}
    for run in stored.runs:
        recipes.setdefault(identity(without(described(run), BESIDES)), []).append(run)
    telling = differing(without(described(run), BESIDES) for run in runs)
    found = [
        RecipeAudit(
            title=_title(members, telling),
            recipe=without(described(members[0]), BESIDES),
            rules=_rules(members, seen, left_out, thresholds),
        )
        for members in recipes.values()
        if any(run.id in seen for run in members)
    ]
    return Audit(recipes=found, left_out=left_out, thresholds=thresholds)


def _title(runs: Sequence[Run], telling: dict[str, dict[str, int]]) -> str:
    """What the recipe is, and the fields that tell it from the others in the store."""
    about, flat = runs[0].about, described(runs[0])
    network = ", ".join(part for part in (about["label"], about["variant"]) if part)
    size = f"d = {about['width']}, L = {about['depth']}, {flat['epochs']} epochs"
    said = ("model", "task", "model.d", "model.L", "epochs")
    rest = [f"{key} = {shown(flat[key])}" for key in telling if key in flat and key not in said]
    return ", ".join([f"{network} on {about['task_label']}", size, *rest])


def _rules(
    runs: Sequence[Run], seen: dict[str, Subject], left_out: dict[str, str], thresholds: Thresholds
) -> list[RuleAudit]:
    present = levels([described(run) for run in runs], "rule")
    members = {
        key: sorted(
            (run for run in runs if identity(options_of(described(run), "rule")) == key),
            key=lambda run: run.config["seed"],
        )
        for key in present
    }
    frozen, why = _baseline(present, members, seen)
    found = []
    for key in sorted(present, key=lambda key: (present[key].name == "frozen", present[key].name != "bp")):
        level, inside = present[key], [seen[run.id] for run in members[key] if run.id in seen]
        if not inside:
            continue
        options = level.label.removeprefix(level.name)
        found.append(
            RuleAudit(
                rule=level.name,
                label=members[key][0].about["rule_label"] + options,
                options=level.options,
                runs=judge(inside, frozen, why, thresholds),
                left_out={run.id: left_out[run.id] for run in members[key] if run.id in left_out},
                thresholds=thresholds,
            )
        )
    return found


def _baseline(
    present: dict[str, Level], members: dict[str, list[Run]], seen: dict[str, Subject]
) -> tuple[dict[int, Subject], str]:
    """The frozen runs by seed, or why there is no baseline."""
    frozen = {
        level.label: {seen[run.id].seed: seen[run.id] for run in members[key] if run.id in seen}
        for key, level in present.items()
        if level.name == "frozen"
    }
    frozen = {label: by_seed for label, by_seed in frozen.items() if by_seed}
    if not frozen:
        return {}, "there is no frozen baseline of this recipe"
    if len(frozen) > 1:
        return {}, f"there are several frozen baselines of this recipe: {', '.join(frozen)}"
    return next(iter(frozen.values())), ""
