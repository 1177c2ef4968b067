"""`--only key=value`: keeping some of the runs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sonde.analysis.configurations import all_described
from sonde.core.errors import SondeError, nearest
from sonde.core.run_ids import Flat, shown
from sonde.store.stored import Runs

T = TypeVar("T")


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
