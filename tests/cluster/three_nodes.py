"""A Ray cluster of three nodes with one processor each, on this machine, and the means to hurt it."""

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import sonde
from processes import folders
from sonde.store.folder import read_manifest

# The residual study long enough to be interrupted: four runs on three processors.
STUDY = [
    "residual",
    "--set",
    "model.L=4",
    "--set",
    "epochs=24",
    "--set",
    "task.steps_per_epoch=60",
    "--no-figures",
]
SMALL = {"object_store_memory": 80_000_000, "include_dashboard": False}
WITHOUT_SURPRISES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}  # docs/cluster.md says why
WATCHFUL = {  # a dead node is noticed after a second or two
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
}


class ThreeNodes:
    """The cluster in a process of its own, which does as it is told through a pipe."""

    def __init__(self, client_port: int, environment: dict[str, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, client_port, environment))
        self.process.start()
        self.client = f"ray://127.0.0.1:{client_port}"
        self.address: str = self.pipe.recv()
        self.others: list[str] = []

    def _ask(self, order: str, what: str = "") -> None:
        self.pipe.send((order, what))
        self.others = self.pipe.recv()

    def fill_up(self) -> None:
        """Three nodes, again."""
        self._ask("fill up")

    def kill(self, node: str) -> None:
        """SIGKILL to a node's raylet and all its workers."""
        self._ask("kill", short(node))

    def off_head(self, node: str) -> bool:
        return any(other.startswith(short(node)) for other in self.others)

    def shutdown(self) -> None:
        self.pipe.send(("end", ""))
        self.process.join()
        self.pipe.close()


def serve(pipe: Connection, client_port: int, environment: dict[str, str]) -> None:
    os.environ |= {**WITHOUT_SURPRISES, **environment}
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "ray_client_server_port": client_port, "_system_config": WATCHFUL, **SMALL}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    others: list[Any] = []
    pipe.send(cluster.address)
    try:
        while True:
            order, what = pipe.recv()
            if order == "end":
                return
            if order == "kill":
                (node,) = (node for node in others if node.node_id.startswith(what))
                others.remove(node)
                raylet = node.all_processes["raylet"][0].process
                for pid in [raylet.pid, *descendants(raylet.pid)]:
                    os.kill(pid, signal.SIGKILL)
                raylet.wait()
                cluster.remove_node(node, allow_graceful=False)
            while order == "fill up" and len(others) < 2:
                others.append(cluster.add_node(num_cpus=1, **SMALL))
            cluster.wait_for_nodes()
            pipe.send([node.node_id for node in others])
    finally:
        cluster.shutdown()


def short(node: str) -> str:
    return node.split("/")[1]


def descendants(pid: int) -> list[int]:
    """Children and theirs, before anybody dies."""
    try:
        children = [
            int(word)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for word in (task / "children").read_text().split()
        ]
    except FileNotFoundError:
        return []
    return children + [grandchild for child in children for grandchild in descendants(child)]


def sessions(runs: Path, run: str) -> list[dict[str, Any]]:
    return sonde.load(runs)[run].manifest.sessions


def states(runs: Path) -> dict[str, str]:
    return {folder.name: read_manifest(folder).state for folder in folders(runs)}
