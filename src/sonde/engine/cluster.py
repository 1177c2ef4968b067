"""The Ray engine: one Ray task for each bundle.  Ray places the tasks, and restarts those whose node died.

The driver (`run_on_cluster`, `Tasks`) and the tasks (`train_on_node`) exchange messages through a `Mailbox` actor.
"""

import asyncio
import logging
import os
import platform
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sonde import __version__
from sonde.core.errors import SondeError, installation
from sonde.engine import Event, RunOutcome, first_ctrl_c
from sonde.store import files
from sonde.store.files import Place, absolute

if TYPE_CHECKING:
    from sonde.config import RunConfig
    from sonde.engine.bundles import Bundle, Ledger


MOST_SUBMITTED = 10_000  # tasks at a time: each takes 7 kB of the driver's memory, and time in every `ray.wait`
TASK_RETRIES = 3  # of a task whose node or process died
HEAD_NODE = {"node:__internal_head__": 0.001}  # the resource that only the head node has
CTRL_C_EVERY = 0.2  # seconds between two checks for Ctrl-C
CANCEL_TIMEOUT = 10.0  # seconds to wait for cancelled tasks
LOCK_TIMEOUT = 150.0  # seconds; the lock or lease of a dead node expires after one or two minutes


def run_on_cluster(
    configs: "Sequence[RunConfig]",
    *,
    runs: Place,
    address: str = "auto",
    cpus_per_run: float = 1,
    gpus_per_run: float = 0,
    data_root: Place | None = None,
    device: str = "auto",
    study: str | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    on_notice: Callable[[str], None] = lambda notice: None,
    on_stop: Callable[[int], None] = lambda running: None,
) -> list[RunOutcome]:
    """Train every configuration on the cluster and return an outcome for each, in order.

    A run uses one thread, and reserves `cpus_per_run` and `gpus_per_run`.  The first Ctrl-C lets running epochs finish,
    the second stops at once.  Either way every run resumes from its last epoch.
    """
    from sonde.engine.bundles import Ledger, bundle
    from sonde.training.train import stackable

    require()
    if gpus_per_run == 0 and device not in ("auto", "cpu"):
        raise SondeError(f"--device {device} on a cluster needs --gpus-per-run")
    ledger = Ledger(
        configs,
        runs=runs,
        on_event=on_event,
        on_notice=on_notice,
        remedy="give more --cpus-per-run",
        second_chance=False,
    )
    left = ledger.clean_up_ended()
    if not left:
        return ledger.results()
    with connected(address) as ray:
        probe_nodes(ray, runs, cpus_per_run, gpus_per_run)
        room = slots(ray, cpus_per_run, gpus_per_run)
        if room == 0:
            on_notice(f"no node has {cpus_per_run:g} CPUs and {gpus_per_run:g} GPUs for a run: waiting for one to join")
        ledger.waiting.extend(bundle(left, jobs=max(room, 1), pays=stackable))
        size = {"num_cpus": cpus_per_run, "num_gpus": gpus_per_run}
        data = None if data_root is None else absolute(data_root)
        used = "cpu" if gpus_per_run == 0 else device
        where = {"runs": absolute(runs), "data_root": data, "device": used, "study": study}
        tasks = Tasks(ray, ledger, size, where)
        with first_ctrl_c() as interrupt:
            try:
                while tasks.submit():
                    tasks.listen()
                    if interrupt.poll():
                        interrupt.recv_bytes()
                        on_stop(tasks.stop())
            finally:
                tasks.cancel()
    return ledger.results()


class Tasks:
    """The driver's side: the submitted tasks that have not ended, and the mailbox that they write to."""

    def __init__(self, ray: Any, ledger: "Ledger", size: dict[str, float], where: dict[str, str | None]) -> None:
        self.ray, self.ledger, self.where_to_train = ray, ledger, where
        self.under_way: dict[Any, Bundle] = {}
        self.where: dict[str, str] = {}  # the node of each run
        self.train = ray.remote(train_on_node).options(**size, max_retries=TASK_RETRIES)
        always = {"max_restarts": -1, "max_task_retries": -1}
        self.mailbox = ray.remote(Mailbox).options(num_cpus=0, resources=HEAD_NODE, **always).remote()
        self.post = self.mailbox.take.remote()

    def submit(self) -> bool:
        """Submit the waiting bundles; return whether any task is running or queued."""
        from sonde import plugins
        from sonde.config import to_tree

        while self.ledger.waiting and not self.ledger.stopping and len(self.under_way) < MOST_SUBMITTED:
            bundle = self.ledger.waiting.popleft()
            trees = [to_tree(config) for config in bundle]
            carried = plugins.carried(source for config in bundle for source in config.sources)
            task = self.train.remote(trees, carried, self.where_to_train, self.mailbox, sys.argv)
            self.under_way[task] = bundle
        return bool(self.under_way)

    def listen(self) -> None:
        """Handle the events that were posted and the tasks that ended; wait `CTRL_C_EVERY` at most."""
        asked = [self.post, *self.under_way]
        self.ray.wait(asked, timeout=CTRL_C_EVERY)
        ready, _ = self.ray.wait(asked, timeout=0, num_returns=len(asked))
        for one in ready:
            if one == self.post:
                for event in self.ray.get(self.post):
                    self._handle(event)
                self.post = self.mailbox.take.remote()
            else:
                self._end(one)

    def _handle(self, event: Event) -> None:
        if event.run in self.ledger.outcomes or event.node is None:  # it has ended meanwhile
            return
        if event.starts and event.run in self.where:
            self.ledger.on_notice(
                f"run {event.run}: its worker on {self.where[event.run]} died; on {event.node} it continues "
                f"after epoch {event.epoch}"
            )
        self.where[event.run] = event.node
        self.ledger.send(event)

    def _end(self, task: Any) -> None:
        """Tell the ledger how a task ended.  A task that was cancelled before it began leaves its runs waiting."""
        bundle = self.under_way.pop(task)
        answers: list[RunOutcome] = []
        how = ""
        try:
            events, answers = self.ray.get(task)
            for event in events:
                self._handle(event)
        except self.ray.exceptions.TaskCancelledError:
            if not self.ledger.begun(bundle):
                return
            how = "its task was cancelled"
        except self.ray.exceptions.RayTaskError as error:
            message = f"{type(error.cause).__name__}: {error.cause}"
            answers = [
                RunOutcome(run=config.id, state="failed", message=message, detail=str(error)) for config in bundle
            ]
        except self.ray.exceptions.RayError as error:
            node = self.where.get(bundle[0].id, "a node")
            how = f"its worker on {node} died, the last of {TASK_RETRIES + 1} ({type(error).__name__})"
        for config in bundle:
            self.where.pop(config.id, None)
        self.ledger.record_end(bundle, {answer.run: answer for answer in answers}, how, "")

    def stop(self) -> int:
        """Cancel the queued tasks and ask the running ones to finish their epoch; return the number of running runs."""
        self.ledger.stopping = True
        self.mailbox.stop.remote()
        for task, bundle in self.under_way.items():
            if not self.ledger.begun(bundle):
                self.ray.cancel(task)
        return sum(len(bundle) for bundle in self.under_way.values() if self.ledger.begun(bundle))

    def cancel(self) -> None:
        """Kill the tasks that have not ended."""
        for task in self.under_way:
            self.ray.cancel(task, force=True)
        if self.under_way:
            self.ray.wait(list(self.under_way), num_returns=len(self.under_way), timeout=CANCEL_TIMEOUT)


class Mailbox:
    """A Ray actor that carries events from the tasks to the driver, and the request to stop to the tasks."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._arrived = asyncio.Event()
        self._stop = asyncio.Event()

    async def post(self, events: list[Event]) -> None:
        """Add events; a task calls this."""
        self._events += events
        self._arrived.set()

    async def take(self) -> list[Event]:
        """Return the events since the last call, as soon as there is one; the driver calls this."""
        await self._arrived.wait()
        self._arrived.clear()
        events, self._events = self._events, []
        return events

    async def stop(self) -> None:
        """Release all calls of `until_stop`."""
        self._stop.set()

    async def until_stop(self) -> None:
        """Return when `stop` is called."""
        await self._stop.wait()


def train_on_node(
    trees: list[dict[str, Any]],
    carried: dict[str, Any],
    where: dict[str, str | None],
    mailbox: Any,
    command: list[str],
) -> tuple[list[Event], list[RunOutcome]]:
    """Train the configurations in a Ray task; return the last events, and an outcome for each run.

    `carried` is the code of their plugins.  A task that Ray restarts resumes from what was committed before.
    """
    from sonde.engine.bundles import receive, train_bundle
    from sonde.store.folder import read_manifest, run_exists
    from sonde.store.schemas import ENDED, Manifest

    sys.argv = command  # a run's manifest names it
    here, stop = _here(), _stop_event(mailbox)
    bundle, there = receive(trees, carried, where)
    unsent: list[Event] = []
    outcomes: list[RunOutcome] = []

    def send(message: Event | RunOutcome) -> None:
        if isinstance(message, RunOutcome):
            outcomes.append(message)
        else:
            unsent.append(message)

    def should_stop() -> bool:
        if len(outcomes) < len(bundle):  # the last events go with the outcomes
            mailbox.post.remote(list(unsent))
            unsent.clear()
        return stop.is_set()

    for config in bundle:
        path = there["runs"] / config.id
        found = read_manifest(path) if run_exists(path) else Manifest()
        if found.state not in ENDED:
            epoch = found.epoch or 0
            send(Event(run=config.id, epoch=epoch, epochs=config.epochs, node=here, starts=True))
    should_stop()
    train_bundle(bundle, **there, send=send, should_stop=should_stop, node=here, patience=LOCK_TIMEOUT)
    return unsent, outcomes


def _here() -> str:
    import ray

    return f"{ray.util.get_node_ip_address()}/{ray.get_runtime_context().get_node_id()[:8]}"


@cache
def _stop_event(mailbox: Any) -> threading.Event:
    """An event that is set when the driver stops or is gone; one for all tasks of a process, which Ray reuses.

    A thread waits for it: Ray gives the CPU of a waiting task to another task.
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


# ── the nodes: connect, and check them before they get work ──────────────────────────────────────────
_Answer = tuple[dict[str, str], bool | str | None]
"""Versions by package, and whether the node sees the test file, or the error why it cannot look."""

ANSWER_TIMEOUT = 120.0  # seconds for a node to start a process and answer
QUIET_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}
LOCAL_OBJECT_STORE = 100_000_000  # bytes, for a Ray that is started here: no large object goes through it


def require() -> Any:
    """Import `ray`, or say how to install it."""
    for setting, value in QUIET_RAY.items():
        os.environ.setdefault(setting, value)
    try:
        import ray
        import ray.util
    except ImportError:
        raise SondeError(f"--engine ray needs the package ray, which is not installed: {installation('ray')}") from None
    return ray


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Yield `ray`, connected: `local` starts a cluster here, `auto` takes RAY_ADDRESS or the one of this machine.

    A program that is connected already keeps its connection.
    """
    ray = require()
    connected_before = ray.is_initialized()
    if not connected_before:
        _connect(ray, address)
    try:
        yield ray
    except (ConnectionError, ray.exceptions.RayError) as error:
        raise SondeError(f"the Ray cluster is gone ({_line_of(error)}): the same command resumes") from error
    finally:
        if not connected_before:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    quietly: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        quietly |= {"include_dashboard": False, "object_store_memory": LOCAL_OBJECT_STORE}
    elif address == "auto":
        address = os.environ.get("RAY_ADDRESS") or "auto"
    answers = False
    try:
        answers = _port_answers(address)
        with _no_stderr():
            ray.init(address=address, **quietly)
    except ConnectionAbortedError as error:
        raise SondeError(
            f"the Ray cluster at --address {address} did not start a server for this command ({_line_of(error, -1)}): "
            "the same command tries again, and fails less often after GRPC_ENABLE_FORK_SUPPORT=0 ray start --head"
        ) from error
    except (OSError, RuntimeError, ValueError, ImportError, AssertionError, ray.exceptions.RayError) as error:
        if answers:
            raise SondeError(
                f"the Ray cluster at --address {address} does not let us in ({_line_of(error)}): it may want its "
                "token, so export RAY_AUTH_MODE=token and have its ~/.ray/auth_token or RAY_AUTH_TOKEN here"
            ) from error
        raise SondeError(
            f"no Ray cluster at --address {address} ({_line_of(error)}): `ray start --head` or --address local "
            "starts one"
        ) from error


def _line_of(error: Exception, line: int = 0) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[line]


@contextmanager
def _no_stderr() -> Iterator[None]:
    """Drop what C code writes to stderr: Ray announces there that its output is off."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _port_answers(address: str) -> bool:
    """Whether the port of the address answers; raises where it does not.  Ray itself would try for minutes."""
    where = urlsplit(address if "//" in address else f"//{address}")
    if where.port is None:
        return False
    socket.create_connection((where.hostname, where.port), timeout=10).close()
    return True


def slots(ray: Any, cpus: float, gpus: float) -> int:
    """The number of tasks of this size that the cluster runs at a time."""
    return sum(_slots_of(node, cpus, gpus) for node in ray.nodes() if node["Alive"])


def _slots_of(node: dict[str, Any], cpus: float, gpus: float) -> int:
    has = node["Resources"]
    fitting = [has.get(kind, 0) // wanted for kind, wanted in (("CPU", cpus), ("GPU", gpus)) if wanted]
    return int(min(fitting, default=0))


def probe_nodes(ray: Any, runs: Place, cpus: float, gpus: float) -> None:
    """Raise unless every node that may get a run has this Sonde and this Python, and sees the store."""
    mark = runs / f".seen-{uuid.uuid4().hex}"
    files.write(mark, b"")
    try:
        for node, answer in _ask_nodes(ray, absolute(mark), cpus, gpus).items():
            _check_answer(node, answer, runs)
    finally:
        mark.unlink(missing_ok=True)


def _ask_nodes(ray: Any, mark: str, cpus: float, gpus: float) -> dict[str, _Answer]:
    """The answer of every node, by its name."""

    def look(mark: str) -> _Answer:  # Ray sends an inner function by value: the node need not have Sonde
        import platform
        from importlib.metadata import version

        found = {"Python": platform.python_version()}
        try:
            found |= {name: version(name) for name in ("sonde", "torch")}
            from sonde.store.files import place
        except ImportError:
            return found, None
        try:
            return found, place(mark).exists()
        except Exception as error:
            return found, str(error)

    task = ray.remote(look)
    asked = {}
    for node in ray.nodes():
        if node["Alive"] and _slots_of(node, cpus, gpus):
            on_node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            name = f"node {node['NodeManagerAddress']}/{node['NodeID'][:8]}"
            asked[task.options(num_cpus=0, scheduling_strategy=on_node).remote(mark)] = name
    answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_TIMEOUT) if asked else ([], [])
    if silent:
        raise SondeError(f"{asked[silent[0]]} does not answer: take it out of the cluster")
    answers = {}
    for answer in answered:
        with suppress(ray.exceptions.RayError):  # the node has left the cluster meanwhile
            answers[asked[answer]] = ray.get(answer)
    return answers


def _comparable(name: str, full: str) -> str:
    """The part of a version that must be equal: not the build of torch, nor the patch of Python."""
    return full.rpartition(".")[0] if name == "Python" else full.partition("+")[0]


def _check_answer(node: str, answer: _Answer, runs: Place) -> None:
    there, seen = answer
    if "sonde" not in there:
        raise SondeError(f"{node} has no Sonde: install sonde {__version__} there")
    here = {"sonde": __version__, "torch": version("torch"), "Python": platform.python_version()}
    for name, local in here.items():
        if _comparable(name, there[name]) != _comparable(name, local):
            raise SondeError(f"{node} has {name} {there[name]}, here is {local}: install the same there")
    if isinstance(seen, str):
        raise SondeError(f"{node} cannot read {runs} ({seen})")
    if not seen:
        raise SondeError(
            f"{node} does not see what is written to {runs} here: --runs must name a folder that all nodes share, or "
            "the URL of an object store"
        )
