"""Engines: train many configurations to their end and report each outcome.

`local` starts processes of this machine, one thread each, `--jobs` at a time.  A server process imports torch once, and
workers are forked from it.  `ray` submits tasks to a Ray cluster, which starts them again when a node dies.  Both hand
out bundles: one run, or several that are trained as a stack.  No bit depends on the engine.

A ledger keeps the state of every run.  A run whose process dies is resumed, once on this machine and up to three times
on a cluster, then marked failed.  A run that fails in a bundle is tried again alone.  Each run has a log.  A stop on
request lets every run finish its epoch and save it.

The table of engines and the options of each are below.
"""

import atexit
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from sonde.core.errors import SondeError, pick
from sonde.store.files import ASIDE, aside_mark, remove_stale

if TYPE_CHECKING:
    from sonde.config import RunConfig
    from sonde.engine.bundles import Bundle
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


START_METHOD = "spawn" if sys.platform == "win32" else "forkserver"
_LONGEST_SOCKET_FOLDER = 80  # characters; the path of a socket has at most 107
PRELOADED = ["sonde.engine.bundles", "torch._dynamo"]
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
    from sonde.engine.bundles import Ledger, bundle
    from sonde.training.train import stackable

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
            ledger.record_end(
                worker.bundle, worker.answers, _how_it_ended(worker.process.exitcode), worker.output.close()
            )
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
    from sonde.engine.bundles import run_worker

    context = multiprocessing.get_context(START_METHOD)
    pipe, worker_pipe = context.Pipe()
    output = ProcessOutput()
    trees = [to_tree(config) for config in bundle]
    carried = plugins.carried(source for config in bundle for source in config.sources)
    arguments = (worker_pipe, output.path, trees, carried, where)
    process = context.Process(target=run_worker, args=arguments, name=bundle[0].id)  # type: ignore[attr-defined]
    process.start()
    worker_pipe.close()
    return _Worker(bundle, process, pipe, output)


def _how_it_ended(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"its process was killed (signal {-exitcode})"
    return f"its process ended without an answer (exit code {exitcode})"
