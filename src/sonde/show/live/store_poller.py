"""Keep the feed at what the store holds: look, tell the numbers at once, and what follows from them a little later."""

import threading
import time
from pathlib import Path

from sonde.core.errors import SondeError
from sonde.show.live.feed import Feed
from sonde.show.live.following import Following
from sonde.show.live.page_state import PageState
from sonde.store.listing import tell

LOOK, MOST = 0.2, 1.0  # seconds between two looks; ten times what a look takes, but no more than this
REST = 2.0  # seconds between two thoughts, or three times what a thought takes


class KeepingUp:
    """Looks and tells; beside that, thinks."""

    def __init__(self, root: Path, feed: Feed, state: PageState) -> None:
        self._feed, self._state = feed, state
        self._following = Following(root)
        self._stored = self._following.stored()
        self._news, self._thought = threading.Event(), threading.Event()

    def run(self) -> None:
        """Until the process ends."""
        threading.Thread(target=self._think, daemon=True).start()
        while True:
            looked = LOOK
            try:
                looked = self._look()
            except (OSError, SondeError) as error:  # the next look makes up for it
                tell(f"the store cannot be read just now ({error})")
            self._thought.wait(min(max(LOOK, 10 * looked), MOST))

    def _look(self) -> float:
        """How long it took to see that nothing changed; what did change is told."""
        began = time.monotonic()
        changed = self._following.look()
        looked = 0.0 if changed else time.monotonic() - began
        if changed or self._thought.is_set() or not self._feed.begun:
            self._thought.clear()
            self._stored = self._following.stored()
            self._feed.publish(self._state.made(self._stored, self._following.stamps, self._following.steps))
            if changed:
                self._news.set()
        return looked

    def _think(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            began = time.monotonic()
            self._state.think(self._stored)
            self._thought.set()
            time.sleep(max(REST, 3 * (time.monotonic() - began)))
