"""What pages are sent: the whole state once, then what changed, each under an id that a page can go on from.

A patch says how one JSON value turns into the next, and is small where little changed:

    ["=", value]                       the value is this now
    ["+", n, rest]                     a list: the first n items stay, then the rest
    ["[", {index: patch}, n, rest]     the same, and some of the items that stay are patched
    ["{", {key: patch}, removed]       an object: patched or new keys, and those that are removed

`assets/live.js` applies them.
"""

import json
import secrets
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

MOST_PATCH_TEXT = 16_000_000  # characters of patches, for pages that come back

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
        same = next((index for index in range(both) if old[index] != new[index]), both)
        return ["+", same, list(new[same:])]
    changed = {index: patch(old[index], new[index]) for index in range(both)}
    inside = {index: known for index, known in changed.items() if known is not None}
    return ["[", inside, both, list(new[both:])]


# ── feed ────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Sent:
    """One event of the stream."""

    id: str
    kind: str  # whole or patch
    text: str


class Feed:
    """The latest state of the page and the patches that led to it; every page reads at its own pace."""

    def __init__(self) -> None:
        self._life = secrets.token_hex(4)  # ids of an earlier server are not known
        self._version = 0
        self._state: dict[str, Any] = {}
        self._whole: Sent | None = None
        self._patches: deque[Sent] = deque()
        self._changed = threading.Condition()

    @property
    def begun(self) -> bool:
        """Whether a state was published."""
        return self._version > 0

    def publish(self, state: dict[str, Any]) -> bool:
        """Make this the state of the page, and wake the pages that wait; False where nothing changed."""
        change = patch(self._state, state)
        if change is None:
            return False
        text = _json(change)
        with self._changed:
            self._version += 1
            self._state, self._whole = state, None
            self._patches.append(Sent(self._id(self._version), "patch", text))
            while sum(len(known.text) for known in self._patches) > MOST_PATCH_TEXT:
                self._patches.popleft()
            self._changed.notify_all()
        return True

    def after(self, id: str | None, seconds: float) -> list[Sent]:
        """What a page that knows `id` has to be sent, as soon as there is something; nothing after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > 0 and id != self._id(self._version), seconds)
            if self._version == 0 or id == self._id(self._version):
                return []
            later = [known.id for known in self._patches]
            before = [self._id(self._version - len(later)), *later]
            missing = list(self._patches)[before.index(id) :] if id in before else None
            if missing is not None and sum(len(known.text) for known in missing) <= MOST_PATCH_TEXT // 4:
                return missing
            if self._whole is None:
                self._whole = Sent(self._id(self._version), "whole", _json(self._state))
            return [self._whole]

    def _id(self, version: int) -> str:
        return f"{self._life}-{version}"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
