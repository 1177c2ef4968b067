"""A worker: trains a bundle, writes the log of each run, and sends events and outcomes."""

import faulthandler
import io
import multiprocessing
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from sonde import plugins
from sonde.config import parse
from sonde.core.errors import SondeError
from sonde.engine import Event, RunOutcome
from sonde.engine.ledger import Bundle, RunLog, outcome_of
from sonde.store.files import Place, place
from sonde.store.folder import read_manifest, run_exists
from sonde.store.lock import Held
from sonde.store.schemas import ENDED, Manifest
from sonde.training.session import EpochProgress
from sonde.training.train import train_together


def train_bundle(
    bundle: Bundle,
    *,
    runs: Place,
    data_root: Place | None,
    device: str,
    study: str | None = None,
    send: Callable[[Event | RunOutcome], None],
    should_stop: Callable[[], bool],
    node: str | None = None,
    patience: float = 0.0,
) -> None:
    """Train the runs together; send an event for every epoch and one outcome for every run, each with the `node`.

    Where another process holds a run, wait up to `patience` seconds: the lock may be that of a dead process.  An error
    is the outcome of every run that has not ended, because it may come from any of them.
    """
    logs = {config.id: RunLog(runs / config.id) for config in bundle}
    left = list(logs)

    def end(run: str, outcome: RunOutcome) -> None:
        left.remove(run)
        message = f": {outcome.message}" if outcome.message else ""
        logs[run].write(f"{outcome.state}{message}", outcome.detail or "")
        send(replace(outcome, node=node))

    def report(progress: EpochProgress) -> None:
        loss = "" if progress.loss is None else f", loss {progress.loss:.6g}"
        logs[progress.run].write(f"epoch {progress.epoch}/{progress.epochs}{loss}")
        send(Event(run=progress.run, epoch=progress.epoch, epochs=progress.epochs, loss=progress.loss, node=node))
        if progress.state in ENDED:
            end(progress.run, outcome_of(progress.run, read_manifest(runs / progress.run)))

    def fail(message: str, detail: str | None = None) -> None:
        for run in list(left):
            end(run, RunOutcome(run=run, state="failed", message=message, detail=detail))

    try:
        machine = platform.node() if node is None else f"{platform.node()}, node {node},"
        for log in logs.values():
            log.write(f"process {os.getpid()} on {machine} {_where(log.run)}")
        where: dict[str, Any] = {"runs": runs, "data_root": data_root, "device": device, "node": node, "study": study}
        train = partial(train_together, bundle, on_progress=report, should_stop=should_stop, **where)
        for run, manifest in zip(logs, _retry_while_held(train, patience, should_stop), strict=True):
            if run in left:
                end(run, outcome_of(run, manifest))
    except SondeError as error:
        fail(str(error))
    except Exception as error:
        fail(f"{type(error).__name__}: {error}", traceback.format_exc())


def _retry_while_held(
    train: Callable[[], list[Manifest]], patience: float, should_stop: Callable[[], bool]
) -> list[Manifest]:
    end = time.monotonic() + patience
    while True:
        try:
            return train()
        except Held:
            if time.monotonic() >= end or should_stop():
                raise
            time.sleep(1)


def _where(run: Place) -> str:
    epoch = read_manifest(run).epoch if run_exists(run) else None
    return "starts from the beginning" if epoch is None else f"resumes from epoch {epoch}"


def receive(
    trees: Sequence[dict[str, Any]], carried: dict[str, plugins.Carried], where: Mapping[str, str | None]
) -> tuple[Bundle, dict[str, Any]]:
    """The runs that another process sent with the code of their plugins, and where `train_bundle` trains them."""
    plugins.receive(carried)
    places = {name: place(str(where[name])) for name in ("runs", "data_root") if where[name] is not None}
    return tuple(parse(tree) for tree in trees), {**where, **places}


def work(
    pipe: Connection,
    output: str,
    trees: list[dict[str, Any]],
    carried: dict[str, plugins.Carried],
    where: dict[str, str | None],
) -> None:
    """Run a worker process of the local engine, which receives the request to stop and sends answers through `pipe`.

    SIGINT is ignored: the command forwards a Ctrl-C.  SIGTERM and SIGHUP may reach every process of a job or terminal:
    the worker finishes and saves the current epoch.
    """
    told_to_end = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: told_to_end.set())
    _redirect(output)
    faulthandler.enable(2)
    threading.Thread(target=_die_with_parent, daemon=True).start()

    def send(message: Event | RunOutcome) -> None:
        try:
            pipe.send(message)
        except OSError:  # the command is gone
            os._exit(1)

    bundle, there = receive(trees, carried, where)
    train_bundle(bundle, **there, send=send, should_stop=lambda: told_to_end.is_set() or pipe.poll())
    pipe.close()


def _redirect(path: str) -> None:
    """Send stdout and stderr of this process, C code included, to the file, and unlink the file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    with suppress(PermissionError):  # Windows keeps the name of an open file
        os.unlink(path)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a killed process flushes nothing


def _die_with_parent() -> None:
    """Exit when the parent process ends, so that the next command finds the runs unlocked."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
