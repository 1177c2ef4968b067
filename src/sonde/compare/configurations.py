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
    known = {key for run in runs for key in described(run)}
    for key, wanted in choices.items():
        if key not in known:
            raise SondeError(f"--only {key}=…: unknown key {key!r}: {nearest(key, known)}")
        present = sorted({shown(described(run)[key]) for run in runs if key in described(run)})
        runs = [run for run in runs if key in described(run) and described(run)[key] == wanted]
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
