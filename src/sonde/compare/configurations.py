"""What stored runs were: flat configurations, where they differ, and keeping some of them."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sonde.errors import SondeError, nearest
from sonde.store.load import WATCHED, Run, Runs

Flat = dict[str, Any]
CHOSEN = ("model", "rule", "task")
"""Sections that are chosen by name and stand for it, as in `sonde.config.keys`."""


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


def all_described(runs: Sequence[Run]) -> dict[str, Flat]:
    """Run id → what it was."""
    flats = {run.id: described(run) for run in runs}
    _fill_in(flats.values(), runs)
    return flats


def _fill_in(flats: Collection[Flat], runs: Iterable[Run]) -> None:
    """Where one of the runs has an option that others are older than or left at its default, give those the default."""
    used = {key for flat in flats for key in flat}
    younger: dict[tuple[str, str | None], Any] = {}
    for run in runs:
        for key, default in run.defaults.items():
            if key in used:
                section = run.config.get(key.partition(".")[0])
                younger[key, section.get("name") if isinstance(section, dict) else None] = default
    for flat in flats:
        for (key, name), default in younger.items():
            part = key.partition(".")[0]
            if flat.get(part, flat.get(f"{part}.name")) == name:
                flat.setdefault(key, default)


@dataclass(frozen=True)
class Kind:
    """Runs that differ in nothing but the seed, and what they are."""

    flat: Flat  # without the seed
    runs: list[Run]


def kinds(runs: Iterable[Run]) -> list[Kind]:
    """The runs by kind, each kind described once; in the order in which they come."""
    found: dict[str, Kind] = {}
    known: dict[str, Kind] = {}
    for run in runs:
        text = json.dumps([{**run.config, "seed": None}, run.about.get("data")], sort_keys=True)
        if text not in known:
            flat = without(described(run), ("seed",))
            known[text] = found.setdefault(identity(flat), Kind(flat, []))
        known[text].runs.append(run)
    _fill_in([kind.flat for kind in found.values()], (run for kind in found.values() for run in kind.runs))
    return list(found.values())


def belongs(key: str, section: str) -> bool:
    """Whether a dotted key is the section or lies inside it."""
    return key == section or key.startswith(f"{section}.")


def without(flat: Flat, sections: Collection[str]) -> Flat:
    return {key: v for key, v in flat.items() if not any(belongs(key, section) for section in sections)}


def identity(flat: Flat) -> str:
    """Equal for equal configurations."""
    return json.dumps(flat, sort_keys=True)


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


def shown(value: Any) -> str:
    """A configured value as `--only` would write it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def assignments(words: Sequence[str], option: str) -> dict[str, Any]:
    """`key=value` words; values are read as JSON where they are JSON, else as text."""
    pairs: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise SondeError(f"{option} {word!r}: write key=value, for example {option} model.L=10")
        try:
            pairs[key] = json.loads(text)
        except ValueError:
            pairs[key] = text
    return pairs


def keep(stored: Runs, choices: Mapping[str, Any]) -> Runs:
    """The runs whose values equal the choices."""
    if not choices:
        return stored
    runs = list(stored.runs)
    flats = all_described(runs)
    known = {key for flat in flats.values() for key in flat}
    for key, wanted in choices.items():
        if key not in known:
            raise SondeError(f"--only {key}=…: unknown key {key!r}: {nearest(key, known)}")
        present = sorted({shown(flats[run.id][key]) for run in runs if key in flats[run.id]})
        runs = [run for run in runs if key in flats[run.id] and flats[run.id][key] == wanted]
        if not runs:
            there = ", ".join(present) or "no such key among the runs kept so far"
            raise SondeError(f"--only {key}={shown(wanted)}: no run has that value; there are {there}")
    ids = [run.id for run in runs]
    return Runs(stored.rows.filter(stored.rows["run"].is_in(ids)), runs)


def complete(stored: Runs) -> tuple[list[Run], dict[str, str]]:
    """The runs that came to their end, and the others: run → why it is left out."""
    inside = [run for run in stored.runs if run.manifest.state == "complete"]
    left_out = {
        run.id: "; ".join(part for part in (f"it is {run.manifest.state}", run.manifest.message) if part)
        for run in stored.runs
        if run.manifest.state != "complete"
    }
    return inside, left_out | {run.id: WATCHED for run in stored.watched}
