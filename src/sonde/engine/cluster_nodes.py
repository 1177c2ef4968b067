"""A Ray cluster before it is used: reached, and its nodes fit for the work."""

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

Answer = tuple[dict[str, str], bool | str | None]
"""Versions by name, and whether the mark was seen or why it could not be looked for."""

ANSWER_TIMEOUT = 120.0  # seconds, for a node to start a process and look around
QUIET_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}
LOCAL_OBJECT_STORE = 100_000_000  # bytes, in a Ray that is started here: nothing large goes through it


def require() -> Any:
    """The `ray` package."""
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
    """`ray`, connected to a cluster: `local` starts one here, `auto` finds the one of RAY_ADDRESS or this machine's.

    A program that is connected already stays so, wherever that is.
    """
    ray = require()
    theirs = ray.is_initialized()
    if not theirs:
        _connect(ray, address)
    try:
        yield ray
    except (ConnectionError, ray.exceptions.RayError) as error:
        raise SondeError(f"the Ray cluster is gone ({_said(error)}): the same command resumes") from error
    finally:
        if not theirs:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    quietly: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        quietly |= {"include_dashboard": False, "object_store_memory": LOCAL_OBJECT_STORE}
    elif address == "auto":
        address = os.environ.get("RAY_ADDRESS") or "auto"
    answers = False
    try:
        answers = _knock(address)
        with _silence():
            ray.init(address=address, **quietly)
    except ConnectionAbortedError as error:
        raise SondeError(
            f"the Ray cluster at --address {address} did not start a server for this command ({_said(error, -1)}): the "
            "same command tries again, and fails less often where GRPC_ENABLE_FORK_SUPPORT=0 ray start --head was given"
        ) from error
    except (OSError, RuntimeError, ValueError, ImportError, AssertionError, ray.exceptions.RayError) as error:
        if answers:
            raise SondeError(
                f"the Ray cluster at --address {address} does not let us in ({_said(error)}): it may want its token, "
                "so export RAY_AUTH_MODE=token and have its ~/.ray/auth_token or RAY_AUTH_TOKEN here"
            ) from error
        raise SondeError(
            f"no Ray cluster at --address {address} ({_said(error)}): `ray start --head` or --address local starts one"
        ) from error


def _said(error: Exception, line: int = 0) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[line]


@contextmanager
def _silence() -> Iterator[None]:
    """What C code writes to stderr is dropped: Ray announces there that it was told to say nothing."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _knock(address: str) -> bool:
    """Whether somebody answers at a port, if one is named; Ray itself tries for minutes where nobody does."""
    where = urlsplit(address if "//" in address else f"//{address}")
    if where.port is None:
        return False
    socket.create_connection((where.hostname, where.port), timeout=10).close()
    return True


def slots(ray: Any, cpus: float, gpus: float) -> int:
    """How many tasks of this size the nodes take at a time."""
    return sum(_room(node, cpus, gpus) for node in ray.nodes() if node["Alive"])


def _room(node: dict[str, Any], cpus: float, gpus: float) -> int:
    has = node["Resources"]
    rooms = [has.get(kind, 0) // wanted for kind, wanted in (("CPU", cpus), ("GPU", gpus)) if wanted]
    return int(min(rooms, default=0))


def check(ray: Any, runs: Place, cpus: float, gpus: float) -> None:
    """Every node that may be given a run has this Sonde and this Python, and sees the store; else it is named."""
    mark = runs / f".seen-{uuid.uuid4().hex}"
    files.write(mark, b"")
    try:
        for node, answer in _asked(ray, absolute(mark), cpus, gpus).items():
            _judge(node, answer, runs)
    finally:
        mark.unlink(missing_ok=True)


def _asked(ray: Any, mark: str, cpus: float, gpus: float) -> dict[str, Answer]:
    """What each of the nodes says of itself, by its name."""

    def look(mark: str) -> Answer:  # a function in a function is sent, not imported
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
        if node["Alive"] and _room(node, cpus, gpus):
            there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            name = f"node {node['NodeManagerAddress']}/{node['NodeID'][:8]}"
            asked[task.options(num_cpus=0, scheduling_strategy=there).remote(mark)] = name
    answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_TIMEOUT) if asked else ([], [])
    if silent:
        raise SondeError(f"{asked[silent[0]]} does not answer: take it out of the cluster")
    answers = {}
    for answer in answered:
        with suppress(ray.exceptions.RayError):  # it has left the cluster meanwhile
            answers[asked[answer]] = ray.get(answer)
    return answers


def _telling(name: str, full: str) -> str:
    """What of a version must be the same: not which build of torch it is, nor the patch of Python."""
    return full.rpartition(".")[0] if name == "Python" else full.partition("+")[0]


def _judge(node: str, answer: Answer, runs: Place) -> None:
    there, seen = answer
    if "sonde" not in there:
        raise SondeError(f"{node} has no Sonde: install sonde {__version__} there")
    here = {"sonde": __version__, "torch": version("torch"), "Python": platform.python_version()}
    for name, mine in here.items():
        if _telling(name, there[name]) != _telling(name, mine):
            raise SondeError(f"{node} has {name} {there[name]}, here is {mine}: install the same there")
    if isinstance(seen, str):
        raise SondeError(f"{node} cannot read {runs} ({seen})")
    if not seen:
        raise SondeError(
            f"{node} does not see what is written to {runs} here: --runs must name a folder that all nodes share, or "
            "the URL of an object store"
        )
