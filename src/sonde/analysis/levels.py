"""The levels of a factor: what a comparison tells apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sonde.core.errors import SondeError, nearest
from sonde.core.run_ids import Flat, belongs, differing, identity, shown


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
