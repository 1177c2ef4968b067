"""What stored runs were: each described once, with those that differ in nothing but the seed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sonde.core.run_ids import Flat, flatten, identity, recipe_of, without
from sonde.store.stored import Run


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


def described(run: Run) -> Flat:
    """The run's configuration, and which data it read where the configuration does not settle it."""
    return flatten({**run.config, "data": run.about.get("data") or {}})


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
