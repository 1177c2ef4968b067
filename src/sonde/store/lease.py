"""A lease on a run in an object store, where the operating system locks nothing.

The lease is an object that names its holder and is renewed while the run is trained.  It is advice: should two
processes ever hold one run (the first was silent for a minute, not dead), both compute the same bits, each puts its
contents before the manifest that names them, and what is lost is the work of one.
"""

import json
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sonde.core.atomic import is_alive
from sonde.core.errors import SondeError
from sonde.store.remote import Remote

RENEWED = 20.0  # seconds between renewals
ABANDONED = 60.0  # seconds without one, after which another may take over
TAKEOVER_PAUSE = 1.0  # seconds after which two that take over at once see who came last


@contextmanager
def lease(at: Remote, me: dict[str, Any], held: Callable[[dict[str, Any]], SondeError]) -> Iterator[Callable[[], None]]:
    """Hold the object `at`, or raise what `held` makes of its holder; a beat is told with the next renewal."""
    mine = _Lease(at, me)
    mine.take(held)
    done = threading.Event()
    renewer = threading.Thread(target=mine.renew, args=(done,), daemon=True)
    renewer.start()
    try:
        yield mine.beat
    finally:
        done.set()
        renewer.join()
        mine.release()


class _Lease:
    def __init__(self, at: Remote, me: dict[str, Any]) -> None:
        self.at, self.me = at, {**me, "token": uuid.uuid4().hex}
        self.beat()

    def beat(self) -> None:
        self.me["beat"] = datetime.now(UTC).isoformat(timespec="seconds")

    def take(self, held: Callable[[dict[str, Any]], SondeError]) -> None:
        try:
            self.at.create(self._content())
            return
        except FileExistsError:
            holder = self._holder()
        if holder is not None and self._is_me(holder):
            return  # the answer to our first try was lost
        if holder is not None and not abandoned(holder):
            raise held(holder)
        self.at.put(self._content())
        time.sleep(TAKEOVER_PAUSE)
        holder = self._holder()
        if holder is not None and not self._is_me(holder):
            raise held(holder)

    def renew(self, done: threading.Event) -> None:
        """Until done; a renewal that fails is made up for by the next, a lease taken by another is left to it."""
        while not done.wait(RENEWED):
            try:
                if self._is_mine():
                    self.at.put(self._content())
            except SondeError:
                continue

    def release(self) -> None:
        try:
            if self._is_mine():
                self.at.unlink(missing_ok=True)
        except SondeError:
            pass  # it is abandoned in a minute

    def _is_mine(self) -> bool:
        holder = self._holder()
        return holder is not None and self._is_me(holder)

    def _is_me(self, holder: dict[str, Any]) -> bool:
        return bool(holder.get("token") == self.me["token"])

    def _holder(self) -> dict[str, Any] | None:
        """Who the object names; nobody where there is none or it cannot be read."""
        try:
            known = json.loads(self.at.read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return known if isinstance(known, dict) else None

    def _content(self) -> bytes:
        return json.dumps({**self.me, "renewed": datetime.now(UTC).isoformat()}).encode()


def abandoned(holder: dict[str, Any]) -> bool:
    """Whether the last renewal is too long ago, by the holder's clock and ours, or its process of this host is gone."""
    try:
        age = (datetime.now(UTC) - datetime.fromisoformat(holder["renewed"])).total_seconds()
        return age > ABANDONED or (holder["host"] == platform.node() and not is_alive(holder["pid"]))
    except (KeyError, TypeError, ValueError):
        return True
