"""What runs were: flat configurations, where they differ, keeping some of them, and the levels of a factor.

A flat configuration has dotted keys; `model`, `rule` and `task` stand for their names.  These are the keys of `--only`,
`--set` and `--factor`, and of every message about them.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sonde.errors import SondeError, nearest
from sonde.store.stored import Run, Runs

T = TypeVar("T")
Flat = dict[str, Any]
CHOSEN = ("model", "rule", "task")
"""Sections that are chosen by name and stand for it."""


def flatten(tree: Mapping[str, Any]) -> Flat:
    """Every dotted key with its value; a section that was chosen by name stands for that name."""
    flat: Flat = {}
    for key, value in tree.items():
        if not isinstance(value, Mapping):
            flat[key] = value
            continue
        inner = flatten(value)
        if key in CHOSEN:
            flat[key] = inner.pop("name")
        flat |= {f"{key}.{name}": v for name, v in inner.items()}
    return flat


def described(run: Run) -> Flat:
    """The run's configuration, and which data it read where the configuration does not settle it."""
    return flatten({**run.config, "data": run.about.get("data") or {}})


def identity(configuration: Mapping[str, Any]) -> str:
    """Equal for equal configurations, flat or not."""
    return json.dumps(configuration, sort_keys=True)


def recipe_of(configuration: Mapping[str, Any]) -> str:
    """Equal for configurations that differ in nothing but the seed."""
    return identity(without(configuration, ("seed",)))


@dataclass(frozen=True)
class Kind:
    """Runs that differ in nothing but the seed, and what they are."""

    flat: Flat  # without the seed
    runs: list[Run]


def kinds(runs: Iterable[Run]) -> list[Kind]:
    """The runs by kind, each kind described once; in the order in which they come."""
    by_flat: dict[str, Kind] = {}
    by_tree: dict[str, Kind] = {}
    for run in runs:
        tree = recipe_of({**run.config, "data": run.about.get("data")})
        if tree not in by_tree:
            flat = without(described(run), ("seed",))
            by_tree[tree] = by_flat.setdefault(identity(flat), Kind(flat, []))
        by_tree[tree].runs.append(run)
    _fill_in(list(by_flat.values()))
    return list(by_flat.values())


def all_described(runs: Iterable[Run]) -> dict[str, Flat]:
    """Run id → what it was, with its seed."""
    return {run.id: kind.flat | {"seed": run.config["seed"]} for kind in kinds(runs) for run in kind.runs}


def _fill_in(kinds: Sequence[Kind]) -> None:
    """Where one of the runs has an option that others are older than or left at its default, give those the default."""
    used = {key for kind in kinds for key in kind.flat}
    younger: dict[tuple[str, str | None], Any] = {}
    for run in (run for kind in kinds for run in kind.runs):
        for key, default in run.defaults.items():
            if key in used:
                section = run.config.get(key.partition(".")[0])
                younger[key, section.get("name") if isinstance(section, dict) else None] = default
    for kind in kinds:
        for (key, name), default in younger.items():
            part = key.partition(".")[0]
            if kind.flat.get(part, kind.flat.get(f"{part}.name")) == name:
                kind.flat.setdefault(key, default)


def belongs(key: str, section: str) -> bool:
    """Whether a dotted key is the section or lies inside it."""
    return key == section or key.startswith(f"{section}.")


def without(configuration: Mapping[str, Any], sections: Collection[str]) -> Flat:
    return {
        key: v for key, v in configuration.items() if not any(belongs(key, section) for section in sections)
    }


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
        fields = [
            key for key in telling[name] if key in flat and (lists or not isinstance(flat[key], list | tuple))
        ]
        return ", ".join([name, *(f"{key} = {shown(flat[key])}" for key in fields)])

    brief = [title(name, flat, lists=False) for name, flat in named]
    return [
        title(name, flat, lists=brief.count(short) > 1)
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


def choices(words: Sequence[str]) -> dict[str, Any]:
    """What `--only key=value` asks for; values are read as JSON where they are JSON, else as text."""
    pairs: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise SondeError(f"--only {word!r}: write key=value, for example --only model.L=10")
        try:
            pairs[key] = json.loads(text)
        except (ValueError, RecursionError):
            pairs[key] = text
    return pairs


def only(described: Iterable[tuple[T, Flat]], wanted: Mapping[str, Any]) -> list[T]:
    """Those whose values equal the wanted; a key or a value that none of them has is an error."""
    kept = list(described)
    known = {key for _, flat in kept for key in flat}
    for key, value in wanted.items():
        if key not in known:
            raise SondeError(f"--only {key}=…: unknown key {key!r}: {nearest(key, known)}")
        present = sorted({shown(flat[key]) for _, flat in kept if key in flat})
        kept = [(one, flat) for one, flat in kept if key in flat and flat[key] == value]
        if not kept:
            there = ", ".join(present) or "no such key among the runs kept so far"
            raise SondeError(f"--only {key}={shown(value)}: no run has that value; there are {there}")
    return [one for one, _ in kept]


def keep(stored: Runs, wanted: Mapping[str, Any]) -> Runs:
    """The stored runs whose values equal the wanted; `variant` stands for the network's variant."""
    if not wanted:
        return stored
    flats = all_described(stored.runs)
    runs = only(((run, flats[run.id] | {"variant": run.about["variant"]}) for run in stored.runs), wanted)
    rows = stored.rows.filter(stored.rows["run"].is_in([run.id for run in runs]))
    return Runs(rows, runs, broken=stored.broken)


@dataclass(frozen=True)
class Level:
    """One value of a factor, which is a key or a section; for a section, all its options."""

    name: str
    label: str  # the name, and the options that tell it from another level of that name
    options: Flat


def levels(configurations: Sequence[Flat], factor: str) -> dict[str, Level]:
    """The levels present, by the identity of their options: names in alphabetical order, numbers in theirs."""
    keys = {key for flat in configurations for key in flat}
    factors = (keys | {key.rpartition(".")[0] for key in keys}) - {"", "seed"}
    if factor not in factors:
        what = "the seed pairs runs and is no factor" if factor == "seed" else f"unknown factor {factor!r}"
        raise SondeError(f"--factor {factor}: {what}: {nearest(factor, factors)}")
    present = {identity(options := options_of(flat, factor)): options for flat in configurations}
    ordered = sorted(present.values(), key=lambda options: _order(options.get(factor)))
    return {identity(options): _level(options, factor, ordered) for options in ordered}


def options_of(flat: Flat, factor: str) -> Flat:
    """The part of a configuration that the factor stands for."""
    return {key: value for key, value in flat.items() if belongs(key, factor)}


def _order(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, int | float)
    return not number, value if number else 0.0, shown(value)


def _level(options: Flat, factor: str, present: Sequence[Flat]) -> Level:
    name = shown(options[factor]) if factor in options else factor if options else "absent"
    namesakes = [other for other in present if other.get(factor) == options.get(factor)]
    parts = [
        f"{key.removeprefix(factor + '.')} = {shown(options[key]) if key in options else 'absent'}"
        for key in differing(namesakes)
        if key != factor
    ]
    return Level(name, f"{name} ({', '.join(parts)})" if parts else name, options)
