"""The side of a worker: train a bundle, log each of its runs, and tell how each ended."""

import faulthandler
import multiprocessing
import os
import platform
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from sonde import plugins
from sonde.config import parse
from sonde.core.errors import SondeError
from sonde.engine.ledger import Bundle
from sonde.engine.log import RunLog, redirect
from sonde.engine.messages import Event, Outcome
from sonde.store.files import Place, place
from sonde.store.folder import RunFolder
from sonde.store.lock import Held
from sonde.store.schemas import ENDED, Manifest
from sonde.training.session import Progress
from sonde.training.train import train_together


def train_bundle(
    bundle: Bundle,
    *,
    runs: Place,
    data_root: Place | None,
    device: str,
    send: Callable[[Event | Outcome], None],
    should_stop: Callable[[], bool],
    node: str | None = None,
    patience: float = 0.0,
) -> None:
    """Train the runs together; send an event for every epoch and one outcome for every run, all with the `node`.

    Runs that another process holds are waited for, `patience` seconds: it may be a dead one's lock.
    An error is the failure of every run that had not ended; whose fault it was, nobody can say here.
    """
    logs = {config.id: RunLog(RunFolder(runs / config.id)) for config in bundle}
    left = list(logs)

    def end(run: str, outcome: Outcome) -> None:
        left.remove(run)
        message = f": {outcome.message}" if outcome.message else ""
        logs[run].tell(f"{outcome.state}{message}", outcome.detail or "")
        send(replace(outcome, node=node))

    def report(progress: Progress) -> None:
        loss = "" if progress.loss is None else f", loss {progress.loss:.6g}"
        logs[progress.run].tell(f"epoch {progress.epoch}/{progress.epochs}{loss}")
        send(
            Event(
                run=progress.run,
                epoch=progress.epoch,
                epochs=progress.epochs,
                loss=progress.loss,
                node=node,
            )
        )
        if progress.state in ENDED:
            end(progress.run, _outcome(progress.run, logs[progress.run].folder.manifest()))

    def fail(message: str, detail: str | None = None) -> None:
        for run in list(left):
            end(run, Outcome(run=run, state="failed", message=message, detail=detail))

    try:
        machine = platform.node() if node is None else f"{platform.node()}, node {node},"
        for log in logs.values():
            log.tell(f"process {os.getpid()} on {machine} {_where(log.folder)}")
        manifests = _patiently(
            lambda: train_together(
                bundle,
                runs=runs,
                data_root=data_root,
                device=device,
                on_progress=report,
                should_stop=should_stop,
                node=node,
            ),
            patience,
            should_stop,
        )
        for run, manifest in zip(logs, manifests, strict=True):
            if run in left:
                end(run, _outcome(run, manifest))
    except SondeError as error:
        fail(str(error))
    except Exception as error:
        fail(f"{type(error).__name__}: {error}", traceback.format_exc())


def _patiently(train: Callable[[], list[Manifest]], patience: float, should_stop: Callable[[], bool]) -> list[Manifest]:
    end = time.monotonic() + patience
    while True:
        try:
            return train()
        except Held:
            if time.monotonic() >= end or should_stop():
                raise
            time.sleep(1)


def _outcome(run: str, manifest: Manifest) -> Outcome:
    return Outcome(run=run, state=manifest.state, message=manifest.message)


def _where(folder: RunFolder) -> str:
    epoch = folder.manifest().epoch if folder.exists() else None
    return "starts from the beginning" if epoch is None else f"resumes from epoch {epoch}"


def work(
    pipe: Connection,
    output: str,
    trees: list[dict[str, Any]],
    carried: dict[str, plugins.Carried],
    runs: str,
    data_root: str | None,
    device: str,
) -> None:
    """A process of this machine: hears through the pipe when to stop, and answers through it.

    The command passes a Ctrl-C on.  SIGTERM and SIGHUP, which may come to every process of a job or of a terminal,
    end and save the epoch under way, as the command asks for too.
    """
    told_to_end = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: told_to_end.set())
    redirect(output)
    faulthandler.enable(2)
    threading.Thread(target=_die_with_parent, daemon=True).start()

    def send(message: Event | Outcome) -> None:
        try:
            pipe.send(message)
        except OSError:  # nobody listens any more
            os._exit(1)

    plugins.receive(carried)
    train_bundle(
        tuple(parse(tree) for tree in trees),
        runs=place(runs),
        data_root=None if data_root is None else place(data_root),
        device=device,
        send=send,
        should_stop=lambda: told_to_end.is_set() or pipe.poll(),
    )
    pipe.close()


def _die_with_parent() -> None:
    """A worker outlives nobody: the command that comes next finds its run free."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
