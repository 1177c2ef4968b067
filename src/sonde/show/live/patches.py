"""What changed from one JSON value to the next, small where little did.

    ["=", value]                    it is this now
    ["+", n, rest]                  a list: its first n stay, then the rest
    ["[", {place: patch}, n, rest]  the same, and some of those that stay are patched
    ["{", {key: patch}, gone]       an object: patched or new keys, and those that are gone

`assets/live.js` applies them.
"""

from typing import Any

Patch = list[Any]


def patch(old: Any, new: Any) -> Patch | None:
    """What turns `old` into `new`; None where they are equal.  A tuple is a list."""
    if old == new:
        return None
    if isinstance(old, dict) and isinstance(new, dict):
        changed = {key: _of_key(old, key, value) for key, value in new.items()}
        inside = {key: known for key, known in changed.items() if known is not None}
        return ["{", inside, [key for key in old if key not in new]]
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return _of_lists(old, new)
    return ["=", new]


def _of_key(old: dict[str, Any], key: str, value: Any) -> Patch | None:
    return patch(old[key], value) if key in old else ["=", value]


def _of_lists(old: Any, new: Any) -> Patch:
    both = min(len(old), len(new))
    if not any(isinstance(one, dict | list | tuple) for one in (*old[:1], *new[:1])):
        same = next((place for place in range(both) if old[place] != new[place]), both)
        return ["+", same, list(new[same:])]
    changed = {place: patch(old[place], new[place]) for place in range(both)}
    inside = {place: known for place, known in changed.items() if known is not None}
    return ["[", inside, both, list(new[both:])]


def patched(old: Any, known: Patch) -> Any:
    """`old` with a patch applied, as the page does it."""
    kind, *how = known
    if kind == "=":
        return how[0]
    if kind == "+":
        return [*old[: how[0]], *how[1]]
    if kind == "[":
        inside, both, rest = how
        return [
            *(patched(one, inside[place]) if place in inside else one for place, one in enumerate(old[:both])),
            *rest,
        ]
    inside, gone = how
    kept = {key: value for key, value in old.items() if key not in gone}
    return kept | {key: patched(old.get(key), inner) for key, inner in inside.items()}
