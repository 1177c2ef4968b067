"""What pages are sent: the whole once, then what changed, each under a number that a page can go on from."""

import json
import secrets
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from sonde.show.live.patches import patch

KEPT = 16_000_000  # characters of patches, for pages that come back


@dataclass(frozen=True)
class Sent:
    """One event of the stream."""

    id: str
    kind: str  # whole or patch
    text: str


class Feed:
    """The latest state of the page, and how it came to be; every page follows at its own pace."""

    def __init__(self) -> None:
        self._life = secrets.token_hex(4)  # a page that knew an earlier server begins anew
        self._version = 0
        self._state: dict[str, Any] = {}
        self._whole: Sent | None = None
        self._patches: deque[Sent] = deque()
        self._changed = threading.Condition()

    @property
    def begun(self) -> bool:
        return self._version > 0

    def publish(self, state: dict[str, Any]) -> bool:
        """Whether anything is new."""
        change = patch(self._state, state)
        if change is None:
            return False
        text = _json(change)
        with self._changed:
            self._version += 1
            self._state, self._whole = state, None
            self._patches.append(Sent(self._id(self._version), "patch", text))
            while sum(len(known.text) for known in self._patches) > KEPT:
                self._patches.popleft()
            self._changed.notify_all()
        return True

    def after(self, id: str | None, seconds: float) -> list[Sent]:
        """What a page that knows `id` has to be told, as soon as there is something; nothing after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > 0 and id != self._id(self._version), seconds)
            if self._version == 0 or id == self._id(self._version):
                return []
            later = [known.id for known in self._patches]
            before = [self._id(self._version - len(later)), *later]
            missing = list(self._patches)[before.index(id) :] if id in before else None
            if missing is not None and sum(len(known.text) for known in missing) <= KEPT // 4:
                return missing
            if self._whole is None:
                self._whole = Sent(self._id(self._version), "whole", _json(self._state))
            return [self._whole]

    def _id(self, version: int) -> str:
        return f"{self._life}-{version}"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
