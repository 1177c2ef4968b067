"""Which runs a page shows one by one when a store holds more than anybody reads."""

from collections.abc import Iterable, Sequence

from sonde.report.contents import RunLine

MOST = 300  # runs with a line in the charts and in the table
NAMED = 20  # ids or seeds in a list beside them


def sample(runs: Sequence[RunLine], most: int = MOST) -> list[RunLine]:
    """At most so many runs, in their order: the first seed of every network, rule and state, then the second, …"""
    if len(runs) <= most:
        return list(runs)
    seen: dict[tuple[str, ...], int] = {}
    turns = []
    for place, run in enumerate(runs):
        kind = (run.family, run.network, run.rule_label, run.state)
        seen[kind] = seen.get(kind, 0) + 1
        turns.append((seen[kind], place))
    return [runs[place] for place in sorted(place for _, place in sorted(turns)[:most])]


def listed(values: Iterable[object], most: int | None) -> str:
    """The values with commas; of more than `most` the first ones, and how many there are."""
    values = list(values)
    shown = ", ".join(str(value) for value in values[:most])
    return shown if most is None or len(values) <= most else f"{shown}, … ({len(values):,} in all)"
