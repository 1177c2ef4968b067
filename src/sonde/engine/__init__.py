"""Engines: train many configurations to their end and report each outcome.

`local` starts processes of this machine, one thread each, `--jobs` at a time.  A server process imports torch once, and
workers are forked from it.  `ray` submits tasks to a Ray cluster, which starts them again when a node dies.  Both hand
out bundles: one run, or several that are trained as a stack.  No bit depends on the engine.

A ledger keeps the state of every run.  A run whose process dies is resumed, once on this machine and up to three times
on a cluster, then marked failed.  A run that fails in a bundle is tried again alone.  Each run has a log.  A stop on
request lets every run finish its epoch and save it.

The table of engines and the options of each are below.
"""

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from sonde.core.errors import SondeError, pick

if TYPE_CHECKING:
    from sonde.config import RunConfig
    from sonde.store.files import Place

ENGINE_OPTIONS = {"local": ("jobs",), "ray": ("address", "cpus_per_run", "gpus_per_run")}
"""The engines by name, and the options that each takes."""

_STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How a run ended: complete, diverged, unfinished (stopped on request) or failed, with the reason."""

    run: str
    state: str
    message: str | None = None
    detail: str | None = None  # of an unexpected failure: its traceback, or what the process wrote
    log: str | None = None  # the log file of a failed run, if there is one
    reused: bool = False  # the store had it already
    node: str | None = None  # the cluster node on which it ended


@dataclass(frozen=True, kw_only=True)
class Event:
    """A run started, finished an epoch, or ended."""

    run: str
    epoch: int
    epochs: int
    loss: float | None = None
    outcome: RunOutcome | None = None
    node: str | None = None  # the cluster node that trains it
    starts: bool = False  # True: a worker has started it


class Engine(Protocol):
    """Trains configurations and returns an outcome for each, in order; failures are outcomes, not exceptions."""

    def __call__(
        self,
        configs: "Sequence[RunConfig]",
        *,
        runs: "Place",
        data_root: "Place | None",
        device: str,
        study: str | None = None,
        on_event: Callable[[Event], None],
        on_notice: Callable[[str], None],
        on_stop: Callable[[int], None],
    ) -> list[RunOutcome]: ...


def choose(name: str, options: Mapping[str, Any]) -> Engine:
    """Return an engine with the options that are not None; an option of another engine raises."""
    from sonde.engine.cluster import run_on_cluster
    from sonde.engine.local import run_locally

    engines: dict[str, Callable[..., list[RunOutcome]]] = {"local": run_locally, "ray": run_on_cluster}
    run_all = pick(engines, name, "engine")
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in ENGINE_OPTIONS[name]:
            other = next(other for other, known in ENGINE_OPTIONS.items() if option in known)
            raise SondeError(f"--{option.replace('_', '-')} is an option of --engine {other}, not of {name}")
    return partial(run_all, **given)


@contextmanager
def first_ctrl_c() -> Iterator[Connection]:
    """Yield a connection that becomes readable at the first Ctrl-C; the second Ctrl-C raises KeyboardInterrupt.

    SIGTERM and SIGHUP are treated alike where their handler raises KeyboardInterrupt.  Ignored signals stay ignored.
    Only the main thread receives signals; in other threads the connection stays silent.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    before: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        restore()
        try:
            before[number](number, frame)
        except KeyboardInterrupt:
            sender.send_bytes(b"stop")

    if threading.current_thread() is threading.main_thread():
        for name in _STOP_SIGNALS:
            handler = signal.getsignal(number) if (number := getattr(signal, name, None)) else None
            if number is not None and callable(handler) and not isinstance(handler, signal.Handlers):
                before[number] = handler
                signal.signal(number, handle)
    try:
        yield receiver
    finally:
        restore()
        receiver.close()
        sender.close()
