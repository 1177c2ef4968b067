"""The local engine: one process with one thread for each bundle.

A server process imports torch once and forks a worker for every bundle, so a bundle has no start-up cost.
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

from sonde.core.atomic import ASIDE, aside_mark, remove_stale
from sonde.engine import Event, RunOutcome, first_ctrl_c

if TYPE_CHECKING:
    from sonde.config import RunConfig
    from sonde.engine.ledger import Bundle
    from sonde.store.files import Place

START_METHOD = "spawn" if sys.platform == "win32" else "forkserver"
_LONGEST_SOCKET_FOLDER = 80  # characters; the path of a socket has at most 107
PRELOADED = ["sonde.engine.worker", "torch._dynamo"]
"""What the server process imports once for all workers.  The first optimiser of a process imports `torch._dynamo`,
which takes longer than a small run."""


_OUTPUT_KEPT = 64_000  # bytes, of the end of a process's output


class ProcessOutput:
    """A temporary file for stdout and stderr of one process, readable after the process died.

    The process unlinks the file as soon as it has opened it, so no file is left behind.
    """

    def __init__(self) -> None:
        self._file, self.path = tempfile.mkstemp(prefix="sonde-")

    def close(self) -> str:
        """Close the file and return the end of its text."""
        with open(self._file, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _OUTPUT_KEPT))
            text = file.read().decode(errors="replace")
        Path(self.path).unlink(missing_ok=True)
        return text


@dataclass
class _Worker:
    bundle: "Bundle"
    process: BaseProcess
    pipe: Connection
    output: ProcessOutput
    answers: dict[str, RunOutcome] = field(default_factory=dict)


def warm_up() -> None:
    """Start the server process, which imports torch while this process continues."""
    if START_METHOD == "forkserver":
        from multiprocessing import forkserver

        _use_own_socket_folder()
        multiprocessing.get_context(START_METHOD).set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()


def _use_own_socket_folder() -> None:
    """Put the sockets of these processes in a folder that the next command removes if this one is killed."""
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    folder = Path(tempfile.gettempdir())
    own = folder / f"{ASIDE}{aside_mark()}"
    if "tempdir" in config or len(str(own)) > _LONGEST_SOCKET_FOLDER:
        return
    remove_stale(folder)
    with suppress(OSError):
        own.mkdir(mode=0o700)
        config["tempdir"] = str(own)
        atexit.register(shutil.rmtree, own, ignore_errors=True)


def run_locally(
    configs: "Sequence[RunConfig]",
    *,
    runs: "Place",
    jobs: int | None = None,
    data_root: "Place | None" = None,
    device: str = "auto",
    study: str | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    on_notice: Callable[[str], None] = lambda notice: None,
    on_stop: Callable[[int], None] = lambda running: None,
) -> list[RunOutcome]:
    """Train every configuration in up to `jobs` processes (default: the number of cores); return an outcome for each.

    The first Ctrl-C lets running epochs finish, the second stops at once.  Either way every run resumes from its last
    epoch.  A run whose process dies is resumed once, and `on_notice` is called.
    """
    from sonde.engine.ledger import Ledger, bundle
    from sonde.training.stack import stackable

    jobs = jobs or os.cpu_count() or 1
    data = None if data_root is None else str(data_root)
    where = {"runs": str(runs), "data_root": data, "device": device, "study": study}
    ledger = Ledger(configs, runs=runs, on_event=on_event, on_notice=on_notice)
    bundles = bundle(ledger.clean_up_ended(), jobs=jobs, pays=stackable)
    ledger.waiting.extend(sorted(bundles, key=lambda runs: stackable(runs[0])))  # what takes longest comes first
    active: dict[Connection, _Worker] = {}

    def listen(worker: _Worker) -> None:
        try:
            message: Event | RunOutcome = worker.pipe.recv()
        except (EOFError, OSError):  # closed, or died in the middle of a message
            del active[worker.pipe]
            worker.process.join()
            worker.pipe.close()
            ledger.ended(worker.bundle, worker.answers, _how_it_ended(worker.process.exitcode), worker.output.close())
            return
        if isinstance(message, RunOutcome):
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
                    worker = _start(ledger.begin(), where)
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


def _start(bundle: "Bundle", where: dict[str, str | None]) -> _Worker:
    from sonde import plugins
    from sonde.config import to_tree
    from sonde.engine.worker import work

    context = multiprocessing.get_context(START_METHOD)
    pipe, worker_pipe = context.Pipe()
    output = ProcessOutput()
    trees = [to_tree(config) for config in bundle]
    carried = plugins.carried(source for config in bundle for source in config.sources)
    arguments = (worker_pipe, output.path, trees, carried, where)
    process = context.Process(target=work, args=arguments, name=bundle[0].id)  # type: ignore[attr-defined]
    process.start()
    worker_pipe.close()
    return _Worker(bundle, process, pipe, output)


def _how_it_ended(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"its process was killed (signal {-exitcode})"
    return f"its process ended without an answer (exit code {exitcode})"
