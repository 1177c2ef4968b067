"""Configurations as flat keys: where they differ, and names that tell them apart.

A flat configuration has dotted keys; `model`, `rule` and `task` stand for their names.  These are the keys of `--only`,
`--set` and `--factor`, and of every message about them.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from sonde.core.run_ids import CHOSEN

Flat = dict[str, Any]


def flatten(tree: Mapping[str, Any]) -> Flat:
    """Every dotted key with its value; a section that was chosen by name stands for that name."""
    return dict(_dotted(tree))


def _dotted(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if not isinstance(value, Mapping):
            yield key, value
            continue
        if key in CHOSEN:
            yield key, value["name"]
        yield from ((f"{key}.{name}", v) for name, v in _dotted(value) if not (key in CHOSEN and name == "name"))


def identity(configuration: Mapping[str, Any]) -> str:
    """Equal for equal configurations, flat or not."""
    return json.dumps(configuration, sort_keys=True)


def recipe_of(configuration: Mapping[str, Any]) -> str:
    """Equal for configurations that differ in nothing but the seed."""
    return identity(without(configuration, ("seed",)))


def belongs(key: str, section: str) -> bool:
    """Whether a dotted key is the section or lies inside it."""
    return key == section or key.startswith(f"{section}.")


def without(configuration: Mapping[str, Any], sections: Collection[str]) -> Flat:
    return {key: v for key, v in configuration.items() if not any(belongs(key, section) for section in sections)}


def differing(configurations: Iterable[Flat]) -> dict[str, dict[str, int]]:
    """Keys whose values are not all the same: key → value → how many configurations have it."""
    flats = list(configurations)
    keys = sorted({key for flat in flats for key in flat})
    counts: dict[str, dict[str, int]] = {}
    for key in keys:
        of_key: dict[str, int] = {}
        for flat in flats:
            value = shown(flat[key]) if key in flat else "absent"
            of_key[value] = of_key.get(value, 0) + 1
        if len(of_key) > 1:
            counts[key] = of_key
    return counts


def told_apart(named: Iterable[tuple[str, Flat]]) -> list[str]:
    """Each name with the fields that tell its configuration from its namesakes; lists where nothing shorter does."""
    named = list(named)
    namesakes: dict[str, list[Flat]] = {}
    for name, flat in named:
        namesakes.setdefault(name, []).append(flat)
    telling = {name: differing(flats) for name, flats in namesakes.items()}

    def title(name: str, flat: Flat, lists: bool) -> str:
        fields = [key for key in telling[name] if key in flat and (lists or not isinstance(flat[key], list | tuple))]
        return ", ".join([name, *(f"{key} = {shown(flat[key])}" for key in fields)])

    brief = [title(name, flat, lists=False) for name, flat in named]
    times = Counter(brief)
    return [
        title(name, flat, lists=True) if times[short] > 1 else short
        for short, (name, flat) in zip(brief, named, strict=True)
    ]


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Keys besides the seed in which two configurations differ, with both values."""
    left, right = flatten(a), flatten(b)
    return [
        f"{key} = {left.get(key)!r} instead of {right.get(key)!r}"
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key) and key != "seed"
    ]


def shown(value: Any) -> str:
    """A configured value as `--only` would write it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
