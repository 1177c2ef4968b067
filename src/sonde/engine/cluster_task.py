"""The side of a Ray task: train a bundle where Ray has put it, tell the driver's mailbox, hear when to stop."""

import asyncio
import sys
import threading
from functools import cache
from typing import Any

from sonde.engine.messages import Event, Outcome

LOCK_TIMEOUT = 150.0  # seconds; a dead node's lock or lease is let go of after one or two minutes


class Mailbox:
    """A Ray actor: events on their way from the tasks to the driver, and the wish to stop on its way to the tasks."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._arrived = asyncio.Event()
        self._stop = asyncio.Event()

    async def post(self, events: list[Event]) -> None:
        self._events += events
        self._arrived.set()

    async def take(self) -> list[Event]:
        """What has arrived since the last time, as soon as there is something."""
        await self._arrived.wait()
        self._arrived.clear()
        events, self._events = self._events, []
        return events

    async def stop(self) -> None:
        self._stop.set()

    async def until_stop(self) -> None:
        await self._stop.wait()


def train(
    trees: list[dict[str, Any]],
    carried: dict[str, Any],
    runs: str,
    data_root: str | None,
    device: str,
    mailbox: Any,
    command: list[str],
) -> tuple[list[Event], list[Outcome]]:
    """Train the configurations; return the last events and an outcome for each.

    The code of their plugins was `carried` here.  A task that Ray starts again, after a node has died, finds what the
    first had committed and goes on from there.
    """
    from sonde import plugins
    from sonde.config import parse
    from sonde.engine.worker import train_bundle
    from sonde.store.place import place
    from sonde.store.run import ENDED, Manifest, RunFolder

    sys.argv = command  # a run's manifest names it
    here, stop = _here(), _stop(mailbox)
    plugins.receive(carried)
    bundle = tuple(parse(tree) for tree in trees)
    unsent: list[Event] = []
    outcomes: list[Outcome] = []

    def send(message: Event | Outcome) -> None:
        if isinstance(message, Outcome):
            outcomes.append(message)
        else:
            unsent.append(message)

    def should_stop() -> bool:
        if len(outcomes) < len(bundle):  # the last events go with the outcomes
            mailbox.post.remote(list(unsent))
            unsent.clear()
        return stop.is_set()

    for config in bundle:
        folder = RunFolder(place(runs) / config.id)
        found = folder.manifest() if folder.exists() else Manifest()
        if found.state not in ENDED:
            epoch = found.epoch or 0
            send(Event(run=config.id, epoch=epoch, epochs=config.epochs, node=here, starts=True))
    should_stop()
    train_bundle(
        bundle,
        runs=place(runs),
        data_root=None if data_root is None else place(data_root),
        device=device,
        send=send,
        should_stop=should_stop,
        node=here,
        patience=LOCK_TIMEOUT,
    )
    return unsent, outcomes


def _here() -> str:
    import ray

    return f"{ray.util.get_node_ip_address()}/{ray.get_runtime_context().get_node_id()[:8]}"


@cache
def _stop(mailbox: Any) -> threading.Event:
    """Set when the driver says so, or is gone.  One for all tasks of a process, which Ray uses again and again.

    It is a thread that waits: a task that does has its processor given away.
    """
    import ray

    stop = threading.Event()

    def listen() -> None:
        try:
            ray.get(mailbox.until_stop.remote())
        finally:
            stop.set()

    threading.Thread(target=listen, daemon=True).start()
    return stop
