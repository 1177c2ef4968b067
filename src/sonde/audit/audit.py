"""Audit a store: its complete runs by recipe, and by rule within each recipe."""

from collections.abc import Sequence
from dataclasses import dataclass

from sonde.audit.judge import Judge
from sonde.audit.thresholds import Thresholds
from sonde.audit.verdict import Diverged, RuleAudit
from sonde.compare.configurations import Flat, Kind, complete, differing, identity, kinds, shown, without
from sonde.compare.factor import Level, levels, options_of
from sonde.compare.makers import made_with
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
    made_with: dict[str, list[str]]  # version and commit → runs


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Every recipe, and the runs that are left out: run → why."""

    recipes: list[RecipeAudit]
    left_out: dict[str, str]
    thresholds: Thresholds


def audit(stored: Runs, thresholds: Thresholds | None = None, judge: Judge | None = None) -> Audit:
    """Ask the four questions of every run that has ended; `judge` knows the store of which these are all runs or some.

    Of a run that diverged it says when; its numbers are not averaged with those of the others.
    """
    thresholds, judge = thresholds or Thresholds(), judge or Judge(stored)
    runs, left_out = complete(stored)
    lost = [run for run in stored.runs if run.manifest.state == "diverged"]
    left_out = {run: why for run, why in left_out.items() if run not in {one.id for one in lost}}
    if not (runs or lost):
        why = "; ".join(f"{run}: {reason}" for run, reason in left_out.items()) or "it is empty"
        raise SondeError(
            f"the store holds no complete run ({why}): finish one with `sonde run` or `sonde train`"
        )
    inside = {run.id for run in (*runs, *lost)}
    recipes: dict[str, list[Kind]] = {}
    for kind in kinds(stored.runs):
        recipes.setdefault(identity(without(kind.flat, BESIDES)), []).append(kind)
    recipes = {
        key: members
        for key, members in recipes.items()
        if any(run.id in inside for kind in members for run in kind.runs)
    }
    telling = differing(without(members[0].flat, BESIDES) for members in recipes.values())
    found = [
        RecipeAudit(
            title=_title(members[0], telling),
            recipe=without(members[0].flat, BESIDES),
            rules=_rules(members, judge, left_out, thresholds),
            made_with=made_with(run for kind in members for run in kind.runs if run.id in inside),
        )
        for members in recipes.values()
    ]
    return Audit(recipes=found, left_out=left_out, thresholds=thresholds)


def _title(kind: Kind, telling: dict[str, dict[str, int]]) -> str:
    """What the recipe is, and the fields that tell it from the others in the store."""
    about, flat = kind.runs[0].about, kind.flat
    network = ", ".join(part for part in (about["label"], about["variant"]) if part)
    size = f"d = {about['width']}, L = {about['depth']}, {flat['epochs']} epochs"
    said = ("model", "task", "model.d", "model.L", "epochs")
    rest = [f"{key} = {shown(flat[key])}" for key in telling if key in flat and key not in said]
    return ", ".join([f"{network} on {about['task_label']}", size, *rest])


def _rules(
    kinds: Sequence[Kind], judge: Judge, left_out: dict[str, str], thresholds: Thresholds
) -> list[RuleAudit]:
    """Kinds of one recipe differ in the rule, so each is a rule with its options."""
    present = levels([kind.flat for kind in kinds], "rule")
    members = {
        identity(options_of(kind.flat, "rule")): sorted(kind.runs, key=lambda run: run.config["seed"])
        for kind in kinds
    }
    states = {
        state: {key: [run for run in runs if run.manifest.state == state] for key, runs in members.items()}
        for state in ("complete", "diverged")
    }
    inside = states["complete"]
    frozen, why = _baseline(present, inside)
    found = []
    for key in sorted(present, key=lambda key: (present[key].name == "frozen", present[key].name != "bp")):
        lost = states["diverged"][key]
        if not (inside[key] or lost):
            continue
        level = present[key]
        options = level.label.removeprefix(level.name)
        found.append(
            RuleAudit(
                rule=level.name,
                label=members[key][0].about["rule_label"] + options,
                options=level.options,
                depth=members[key][0].about["depth"],
                runs=judge.runs(inside[key], thresholds),
                margin=judge.margin(level.name, inside[key], frozen, why, thresholds),
                diverged=[
                    Diverged(run=run.id, seed=run.config["seed"], epoch=run.manifest.epoch or 0)
                    for run in lost
                ],
                left_out={run.id: left_out[run.id] for run in members[key] if run.id in left_out},
                thresholds=thresholds,
            )
        )
    return found


def _baseline(present: dict[str, Level], inside: dict[str, list[Run]]) -> tuple[dict[int, Run], str]:
    """The frozen runs by seed, or why there is no baseline."""
    frozen = {
        level.label: {run.config["seed"]: run for run in inside[key]}
        for key, level in present.items()
        if level.name == "frozen"
    }
    frozen = {label: by_seed for label, by_seed in frozen.items() if by_seed}
    if not frozen:
        return {}, "there is no frozen baseline of this recipe"
    if len(frozen) > 1:
        return {}, f"there are several frozen baselines of this recipe: {', '.join(frozen)}"
    return next(iter(frozen.values())), ""
