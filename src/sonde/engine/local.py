"""Runs in processes of this machine: one process and one thread a run.

A server process imports torch once and forks a worker for every run, so a run costs no start-up of its own.
"""

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sonde.config import RunConfig

METHOD = "spawn" if sys.platform == "win32" else "forkserver"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended: complete, diverged, unfinished (stopped on request) or failed, with the reason."""

    run: str
    state: str
    message: str | None = None
    detail: str | None = None  # the traceback of an error that was not foreseen
    reused: bool = False  # it was in the store already


@dataclass(frozen=True, kw_only=True)
class Event:
    """A run started, finished an epoch, or ended."""

    run: str
    epoch: int
    epochs: int
    loss: float | None = None
    outcome: Outcome | None = None


@dataclass
class _Worker:
    config: "RunConfig"
    process: BaseProcess
    pipe: Connection
    outcome: Outcome | None = None


def warm_up() -> None:
    """Let the server process import torch while this one does something else."""
    if METHOD == "forkserver":
        from multiprocessing import forkserver

        multiprocessing.get_context(METHOD).set_forkserver_preload(["sonde.engine.preload"])
        forkserver.ensure_running()


def run_all(
    configs: "Sequence[RunConfig]",
    *,
    runs: Path,
    jobs: int,
    data_root: Path | None = None,
    device: str = "auto",
    on_event: Callable[[Event], None] = lambda event: None,
    on_stop: Callable[[int], None] = lambda running: None,
) -> list[Outcome]:
    """Train every configuration, `jobs` at a time, and return an outcome for each, in order.

    Ctrl-C lets the running ones finish their epoch; a second one stops them at once.  Either way every run
    resumes from its last epoch.
    """
    from sonde.config import to_tree
    from sonde.store.run import ENDED, RunFolder

    context = multiprocessing.get_context(METHOD)
    waiting = deque(configs)
    active: dict[Connection, _Worker] = {}
    outcomes: dict[str, Outcome] = {}
    stopping = False

    def finish(config: "RunConfig", outcome: Outcome) -> None:
        outcomes[config.id] = outcome
        on_event(Event(run=config.id, epoch=config.epochs, epochs=config.epochs, outcome=outcome))

    def start(config: "RunConfig") -> None:
        folder = RunFolder(runs / config.id)
        if folder.exists() and folder.manifest().state in ENDED:
            manifest = folder.manifest()
            finish(
                config, Outcome(run=config.id, state=manifest.state, message=manifest.message, reused=True)
            )
            return
        ours, theirs = context.Pipe()
        order = (theirs, to_tree(config), str(runs), None if data_root is None else str(data_root), device)
        process = context.Process(  # type: ignore[attr-defined]
            target=_work, args=order, name=config.id
        )
        process.start()
        theirs.close()
        active[ours] = _Worker(config, process, ours)
        on_event(Event(run=config.id, epoch=0, epochs=config.epochs))

    def listen(worker: _Worker) -> None:
        try:
            message = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join()
            del active[worker.pipe]
            died = f"its process died (exit code {worker.process.exitcode}); the same command resumes it"
            finish(
                worker.config, worker.outcome or Outcome(run=worker.config.id, state="failed", message=died)
            )
            return
        if isinstance(message, Outcome):
            worker.outcome = message
        else:
            on_event(message)

    try:
        while waiting or active:
            try:
                while waiting and len(active) < jobs and not stopping:
                    start(waiting.popleft())
                if stopping and not active:
                    break
                for pipe in wait(list(active)) if active else ():
                    listen(active[pipe])  # type: ignore[index]
            except KeyboardInterrupt:
                if stopping:
                    raise
                stopping = True
                on_stop(len(active))
                for pipe in active:
                    pipe.send("stop")
    finally:
        for worker in active.values():
            worker.process.terminate()
            worker.process.join()
    for config in waiting:
        outcomes[config.id] = Outcome(run=config.id, state="unfinished", message="not started")
    return [outcomes[config.id] for config in configs]


def _work(pipe: Connection, tree: dict[str, Any], runs: str, data_root: str | None, device: str) -> None:
    """The worker: train one run, report every epoch, and send an outcome before the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    from sonde.config import parse
    from sonde.errors import SondeError
    from sonde.training.train import Progress, train

    config = parse(tree)

    def report(progress: Progress) -> None:
        pipe.send(Event(run=progress.run, epoch=progress.epoch, epochs=progress.epochs, loss=progress.loss))

    try:
        manifest = train(
            config,
            runs=runs,
            data_root=None if data_root is None else Path(data_root),
            device=device,
            on_progress=report,
            should_stop=pipe.poll,
        )
        outcome = Outcome(run=config.id, state=manifest.state, message=manifest.message)
    except SondeError as error:
        outcome = Outcome(run=config.id, state="failed", message=str(error))
    except Exception as error:
        summary = f"{type(error).__name__}: {error}"
        outcome = Outcome(run=config.id, state="failed", message=summary, detail=traceback.format_exc())
    pipe.send(outcome)
    pipe.close()


def _die_with_parent() -> None:
    """A worker outlives nobody: the command that comes next finds its run free."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
