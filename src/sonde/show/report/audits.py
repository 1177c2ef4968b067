"""The audit on the page: a table for every recipe, or for several that were run under one rule each."""

from collections.abc import Sequence
from typing import Any

from sonde.analysis.audit import Judge, RecipeAudit, audit
from sonde.analysis.recipe_table import columns, footnotes, lines
from sonde.analysis.verdict import sentence
from sonde.core.errors import SondeError
from sonde.core.run_ids import belongs, differing, shown
from sonde.show.report.parts import AuditPart, AuditSentence, AuditTable
from sonde.show.report.runs import network_of
from sonde.store.stored import Runs


def audit_part(stored: Runs, judge: Judge) -> AuditPart:
    """Every recipe of the store."""
    try:
        found = audit(stored, judge=judge)
    except SondeError as error:
        return AuditPart(tables=[], thresholds={}, left_out={}, reason=str(error))
    groups: dict[str, list[RecipeAudit]] = {}
    for place, recipe in enumerate(found.recipes):
        alone = repr((columns(recipe), task_of(recipe, stored)))
        groups.setdefault(alone if len(recipe.rules) == 1 else str(place), []).append(recipe)
    ordered = sorted(map(_by_value, groups.values()), key=lambda recipes: len(recipes[0].rules) == 1)
    titles = [_title(recipes, stored) for recipes in ordered]
    tables = []
    for recipes, title in zip(ordered, titles, strict=True):
        twins = [group[0] for group, other in zip(ordered, titles, strict=True) if other == title]
        apart = "" if len(twins) == 1 else labels(twins, stored)[twins.index(recipes[0])]
        tables.append(_table(recipes, title, apart, stored))
    return AuditPart(tables=tables, thresholds=found.thresholds.words, left_out=found.left_out)


def _by_value(recipes: Sequence[RecipeAudit]) -> list[RecipeAudit]:
    """In the order of the values in which they differ, numbers as numbers."""
    keys = differing([recipe.recipe for recipe in recipes])

    def order(recipe: RecipeAudit) -> list[tuple[bool, float, str]]:
        values = [recipe.recipe.get(key) for key in keys]
        return [(False, value, "") if isinstance(value, int | float) else (True, 0.0, shown(value)) for value in values]

    return sorted(recipes, key=order)


def labels(recipes: Sequence[RecipeAudit], stored: Runs) -> list[str]:
    """Each recipe by what tells it from the others: its network, and the keys in which they differ."""
    networks = [network_in(recipe, stored) for recipe in recipes]
    everywhere = [key for key in differing([recipe.recipe for recipe in recipes]) if not belongs(key, "model")]
    found = []
    for network, recipe in zip(networks, recipes, strict=True):
        namesakes = [other.recipe for other, name in zip(recipes, networks, strict=True) if name == network]
        keys = [*(key for key in differing(namesakes) if belongs(key, "model")), *everywhere]
        own = [f"{key.removeprefix('model.')} = {shown(recipe.recipe.get(key, 'absent'))}" for key in keys]
        found.append(", ".join([*([] if len(set(networks)) == 1 and own else [network]), *own]))
    return found


def _title(recipes: Sequence[RecipeAudit], stored: Runs) -> str:
    networks = {network_in(recipe, stored): None for recipe in recipes}
    return f"{next(iter(networks)) if len(networks) == 1 else 'One rule each'} on {task_of(recipes[0], stored)}"


def _table(recipes: Sequence[RecipeAudit], title: str, apart: str, stored: Runs) -> AuditTable:
    """One recipe, or several with one rule each in one table, every line labelled by what differs."""
    one = len(recipes) == 1
    names = labels(recipes, stored)
    said = [
        AuditSentence(
            sentence=sentence(rule) if one else f"{name}, {sentence(rule)}",
            runs=rule.ended,
            seeds=rule.seeds,
        )
        for name, recipe in zip(names, recipes, strict=True)
        for rule in recipe.rules
    ]
    sizes = _sizes(recipes, stored)
    more = [part for part in apart.split(", ") if part not in sizes and not part.startswith("epochs = ")]
    return AuditTable(
        title=title,
        about=", ".join(part for part in (*sizes, *more) if part),
        columns=dict(_ordered(["setting", "left"], list(columns(recipes[0]).items()), one)),
        lines=[
            _ordered(name, line, one) for name, recipe in zip(names, recipes, strict=True) for line in lines(recipe)
        ],
        sentences=said,
        notes=_notes(recipes, names),
        recipe=_shared(recipes),
    )


def _sizes(recipes: Sequence[RecipeAudit], stored: Runs) -> list[str]:
    """Width, depth and length, where the recipes share them."""
    abouts = [stored[recipe.rules[0].ended[0]].about for recipe in recipes]
    said = {
        "d = {}": {about["width"] for about in abouts},
        "L = {}": {about["depth"] for about in abouts},
        "{} epochs": {recipe.recipe["epochs"] for recipe in recipes},
    }
    return [words.format(*values) for words, values in said.items() if len(values) == 1]


def _notes(recipes: Sequence[RecipeAudit], names: Sequence[str]) -> list[str]:
    """Every footnote once; of several recipes those about a rule say whose."""
    notes = []
    for name, recipe in zip(names, recipes, strict=True):
        for note in footnotes(recipe):
            of_rule = len(recipes) > 1 and any(note.startswith(f"{rule.label}: ") for rule in recipe.rules)
            notes.append(f"{name}, {note}" if of_rule else note)
    return list(dict.fromkeys(notes))


def _ordered(setting: Any, cells: Sequence[Any], one: bool) -> list[Any]:
    """What differs where there are several, rule, verdict, then the numbers it rests on."""
    rule, *numbers, verdict = cells
    return [*([] if one else [setting]), rule, verdict, *numbers]


def _shared(recipes: Sequence[RecipeAudit]) -> dict[str, str]:
    telling = differing([recipe.recipe for recipe in recipes])
    return {
        key: " or ".join(telling[key]) if key in telling else shown(value) for key, value in recipes[0].recipe.items()
    }


def network_in(recipe: RecipeAudit, stored: Runs) -> str:
    return network_of(stored[recipe.rules[0].ended[0]])


def task_of(recipe: RecipeAudit, stored: Runs) -> str:
    return str(stored[recipe.rules[0].ended[0]].about["task_label"])
