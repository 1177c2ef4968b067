"""Runs in processes of this machine: one process and one thread for each bundle.

A server process imports torch once and forks a worker for every bundle, so a run costs no start-up of its own.
"""

import atexit
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from sonde.core.atomic import ASIDE, aside_mark, sweep
from sonde.engine.log import ProcessOutput
from sonde.engine.messages import Event, Outcome, first_ctrl_c

if TYPE_CHECKING:
    from sonde.config import RunConfig
    from sonde.engine.ledger import Bundle
    from sonde.store.files import Place

__all__ = ["Event", "Outcome", "run_all", "warm_up"]

START_METHOD = "spawn" if sys.platform == "win32" else "forkserver"
LONGEST_SOCKET_FOLDER = 80  # characters: a socket's path may have 107
PRELOADED = ["sonde.engine.worker", "torch._dynamo"]
"""What the server process imports once for all its workers.

The first optimiser a process builds imports `torch._dynamo`, which takes longer than a small run.
"""


@dataclass
class _Worker:
    bundle: "Bundle"
    process: BaseProcess
    pipe: Connection
    output: ProcessOutput
    answers: dict[str, Outcome] = field(default_factory=dict)


def warm_up() -> None:
    """Let the server process import torch while this one does something else."""
    if START_METHOD == "forkserver":
        from multiprocessing import forkserver

        _meet_in_an_own_folder()
        multiprocessing.get_context(START_METHOD).set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()


def _meet_in_an_own_folder() -> None:
    """Sockets of these processes lie in a folder that the next command sweeps, should this one be killed."""
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    folder = Path(tempfile.gettempdir())
    own = folder / f"{ASIDE}{aside_mark()}"
    if "tempdir" in config or len(str(own)) > LONGEST_SOCKET_FOLDER:
        return
    sweep(folder)
    with suppress(OSError):
        own.mkdir(mode=0o700)
        config["tempdir"] = str(own)
        atexit.register(shutil.rmtree, own, ignore_errors=True)


def run_all(
    configs: "Sequence[RunConfig]",
    *,
    runs: "Place",
    jobs: int | None = None,
    data_root: "Place | None" = None,
    device: str = "auto",
    on_event: Callable[[Event], None] = lambda event: None,
    on_notice: Callable[[str], None] = lambda notice: None,
    on_stop: Callable[[int], None] = lambda running: None,
) -> list[Outcome]:
    """Train every configuration, in `jobs` processes at a time, and return an outcome for each, in order.

    `jobs` are as many as there are cores, if not given.
    Ctrl-C lets the running ones finish their epoch; a second one stops them at once.  Either way every run
    resumes from its last epoch.  A run whose process dies is resumed once, and `on_notice` is told.
    """
    from sonde.engine.ledger import Ledger, bundle
    from sonde.training.stack import stackable

    jobs = jobs or os.cpu_count() or 1
    ledger = Ledger(configs, runs=runs, on_event=on_event, on_notice=on_notice)
    ledger.waiting.extend(bundle(ledger.unended(), jobs=jobs, pays=stackable))
    active: dict[Connection, _Worker] = {}

    def listen(worker: _Worker) -> None:
        try:
            message: Event | Outcome = worker.pipe.recv()
        except (EOFError, OSError):  # closed, or died in the middle of a message
            del active[worker.pipe]
            worker.process.join()
            worker.pipe.close()
            ledger.ended(worker.bundle, worker.answers, _how(worker.process.exitcode), worker.output.close())
            return
        if isinstance(message, Outcome):
            worker.answers[message.run] = message
        else:
            on_event(message)

    def stop() -> None:
        ledger.stopping = True
        on_stop(sum(len(worker.bundle) - len(worker.answers) for worker in active.values()))
        for pipe in active:
            with suppress(OSError):  # it has just ended
                pipe.send("stop")

    with first_ctrl_c() as interrupt:
        try:
            while active or (ledger.waiting and not ledger.stopping):
                while ledger.waiting and len(active) < jobs and not ledger.stopping:
                    worker = _start(ledger.begin(), runs, data_root, device)
                    active[worker.pipe] = worker
                for ready in wait([interrupt, *active]):
                    if ready is interrupt:
                        interrupt.recv_bytes()
                        stop()
                    else:
                        listen(active[ready])  # type: ignore[index]
        finally:
            for worker in active.values():
                worker.process.kill()
                worker.process.join()
                worker.output.close()
    return ledger.results()


def _start(bundle: "Bundle", runs: "Place", data_root: "Place | None", device: str) -> _Worker:
    from sonde import plugins
    from sonde.config import to_tree
    from sonde.engine.worker import work

    context = multiprocessing.get_context(START_METHOD)
    ours, theirs = context.Pipe()
    output = ProcessOutput()
    trees = [to_tree(config) for config in bundle]
    carried = plugins.carried(source for config in bundle for source in config.sources)
    where = (str(runs), None if data_root is None else str(data_root), device)
    order = (theirs, output.path, trees, carried, *where)
    process = context.Process(target=work, args=order, name=bundle[0].id)  # type: ignore[attr-defined]
    process.start()
    theirs.close()
    return _Worker(bundle, process, ours, output)


def _how(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"its process was killed (signal {-exitcode})"
    return f"its process ended without an answer (exit code {exitcode})"
