"""Connect to a Ray cluster, and check its nodes before they get work."""

import logging
import os
import platform
import socket
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from sonde import __version__
from sonde.core.errors import SondeError, installation
from sonde.store import files
from sonde.store.files import Place, absolute

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


def check_nodes(ray: Any, runs: Place, cpus: float, gpus: float) -> None:
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
