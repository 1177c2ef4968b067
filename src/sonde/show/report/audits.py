"""The audit on the page: a table for every recipe; recipes that were run under one rule each share a table."""

from collections.abc import Sequence
from typing import Any

from sonde.analysis.audit import Audit, RecipeAudit
from sonde.analysis.audit_text import audit_columns, audit_footnotes, audit_rows, sentence
from sonde.core.formatting import network
from sonde.core.run_ids import belongs, differing, shown
from sonde.show.report.contents import AuditPart, AuditSentence, AuditTable
from sonde.store.run import Runs


def audit_part(audited: Audit, stored: Runs) -> AuditPart:
    """Every recipe of the store."""
    groups: dict[str, list[RecipeAudit]] = {}
    for index, recipe in enumerate(audited.recipes):
        alone = repr((audit_columns(recipe), task_of(recipe, stored)))
        groups.setdefault(alone if len(recipe.rules) == 1 else str(index), []).append(recipe)
    ordered = sorted(map(_by_value, groups.values()), key=lambda recipes: len(recipes[0].rules) == 1)
    titles = [_title(recipes, stored) for recipes in ordered]
    tables = []
    for recipes, title in zip(ordered, titles, strict=True):
        twins = [group[0] for group, other in zip(ordered, titles, strict=True) if other == title]
        apart = "" if len(twins) == 1 else recipe_labels(twins, stored)[twins.index(recipes[0])]
        tables.append(_table(recipes, title, apart, stored))
    return AuditPart(tables=tables, thresholds=audited.thresholds.words, left_out=audited.left_out)


def _by_value(recipes: Sequence[RecipeAudit]) -> list[RecipeAudit]:
    """In the order of the values in which they differ, numbers as numbers."""
    keys = differing([recipe.recipe for recipe in recipes])

    def order(recipe: RecipeAudit) -> list[tuple[bool, float, str]]:
        values = [recipe.recipe.get(key) for key in keys]
        return [(False, value, "") if isinstance(value, int | float) else (True, 0.0, shown(value)) for value in values]

    return sorted(recipes, key=order)


def recipe_labels(recipes: Sequence[RecipeAudit], stored: Runs) -> list[str]:
    """Each recipe by what tells it from the others: its network, and the keys in which they differ."""
    networks = [network_in(recipe, stored) for recipe in recipes]
    everywhere = [key for key in differing([recipe.recipe for recipe in recipes]) if not belongs(key, "model")]
    found = []
    for name, recipe in zip(networks, recipes, strict=True):
        namesakes = [other.recipe for other, same in zip(recipes, networks, strict=True) if same == name]
        keys = [*(key for key in differing(namesakes) if belongs(key, "model")), *everywhere]
        own = [f"{key.removeprefix('model.')} = {shown(recipe.recipe.get(key, 'absent'))}" for key in keys]
        found.append(", ".join([*([] if len(set(networks)) == 1 and own else [name]), *own]))
    return found


def _title(recipes: Sequence[RecipeAudit], stored: Runs) -> str:
    networks = {network_in(recipe, stored): None for recipe in recipes}
    return f"{next(iter(networks)) if len(networks) == 1 else 'One rule each'} on {task_of(recipes[0], stored)}"


def _table(recipes: Sequence[RecipeAudit], title: str, apart: str, stored: Runs) -> AuditTable:
    """One recipe, or several with one rule each in one table, every line labelled by what differs."""
    one = len(recipes) == 1
    names = recipe_labels(recipes, stored)
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
        columns=dict(_ordered(["setting", "left"], list(audit_columns(recipes[0]).items()), one)),
        lines=[
            _ordered(name, line, one)
            for name, recipe in zip(names, recipes, strict=True)
            for line in audit_rows(recipe)
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
        for note in audit_footnotes(recipe):
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
    """What the recipe's network is called."""
    return network(stored[recipe.rules[0].ended[0]].about)


def task_of(recipe: RecipeAudit, stored: Runs) -> str:
    """What the recipe's task is called."""
    return str(stored[recipe.rules[0].ended[0]].about["task_label"])
