"""What Ray costs: tiny runs on a cluster of one to three nodes with one processor each, all on this machine.

A node is a slot: it trains one bundle at a time.  The cost of scheduling is the part of the slots' time in which
nothing was trained,

    cost = 1 − Σ (seconds inside tasks) / (slots × wall),

where wall is all of `run_all`: looking at the nodes, the mailbox, handing out every task, and the end, when fewer
bundles are left than slots.  Workers are warm: an earlier study has made them import torch, once each.
Seconds inside tasks are by the clock, so three slots on two cores slow training and wall alike;
`cores` says how many cores' worth of processor time the tasks got.  `idle` is the same cost in seconds a task.

    alone     every run is a task: their width fills no vector, so they cannot be stacked
    stacked   seeds of one configuration, bundled as `sonde run` does
"""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sonde.config import Optimiser, Probing, RunConfig
from sonde.engine import cluster
from sonde.models import ResMLP
from sonde.rules import Backprop
from sonde.tasks import Identity

SWEEPS = ((1, 50), (1, 200), (2, 50), (2, 200), (3, 50), (3, 200))  # nodes, runs
TINY = {"L": 4, "epochs": 4, "steps": 50, "alone": 24, "stacked": 32}  # the last two: widths


def tiny(d: int, seed: int) -> RunConfig:
    return RunConfig(
        model=ResMLP(d=d, L=TINY["L"], weight_scale="1/sqrt(L)"),
        rule=Backprop(),
        task=Identity(d=d, samples=512, test_samples=64, steps_per_epoch=TINY["steps"]),
        probes=Probing(names=("loss", "hidden_norm", "grad_norm"), costly=(), size=64),
        optimiser=Optimiser(name="adam", weight_decay=0.0, schedule="constant"),
        batch_size=32,
        epochs=TINY["epochs"],
        seed=seed,
    )


def timed(train: Callable[..., Any], notes: str) -> Callable[..., Any]:
    """The task, with a note of how long it took."""

    def train_and_note(*order: Any) -> Any:
        import json
        import time
        import uuid

        import sonde.engine.bundles  # noqa: F401  the imports are no work of a task

        clock, processor = time.perf_counter(), time.process_time()
        answer = train(*order)
        note = {"clock": time.perf_counter() - clock, "processor": time.process_time() - processor}
        with open(f"{notes}/{uuid.uuid4()}", "w") as file:
            json.dump(note, file)
        return answer

    return train_and_note


def sweep(kind: str, nodes: int, runs: int, folder: Path) -> dict[str, Any]:
    """Train the runs of a kind on a cluster that has these nodes, and see where the time went."""
    notes = folder / "notes"
    notes.mkdir(parents=True)
    (folder / "runs").mkdir()
    configs = [tiny(TINY[kind], seed) for seed in range(runs)]
    plain = cluster.train_on_node
    cluster.train_on_node = timed(plain, str(notes))
    begin = time.perf_counter()
    try:
        outcomes = cluster.run_on_cluster(configs, runs=folder / "runs")
    finally:
        cluster.train_on_node = plain
    wall = time.perf_counter() - begin
    assert all(outcome.state == "complete" for outcome in outcomes)
    noted = [json.loads(file.read_text()) for file in notes.iterdir()]
    inside, processor = (sum(note[kind] for note in noted) for kind in ("clock", "processor"))
    return {
        "kind": kind,
        "nodes": nodes,
        "runs": runs,
        "tasks": len(noted),
        "wall": round(wall, 2),
        "task": round(inside / len(noted), 3),
        "idle": round((nodes * wall - inside) / len(noted), 4),
        "cores": round(processor / wall, 2),
        "cost": round(1 - inside / (nodes * wall), 4),
    }


def measure() -> list[dict[str, Any]]:
    ray = cluster.require()
    from ray.cluster_utils import Cluster

    small = {
        "num_cpus": 1,
        "object_store_memory": cluster.LOCAL_OBJECT_STORE,
        "include_dashboard": False,
    }
    machines = Cluster(initialize_head=True, head_node_args=small)
    found: list[dict[str, Any]] = []
    try:
        with tempfile.TemporaryDirectory() as place, cluster.connected(machines.address):
            there = 1
            for number, runs in SWEEPS:
                if number > there:
                    machines.add_node(**small)
                    machines.wait_for_nodes()
                    there = number
                if not any(known["nodes"] == number for known in found):
                    sweep("alone", number, 3 * number, Path(place) / f"warm-{number}")
                kinds = ("alone", "stacked") if runs == max(runs for _, runs in SWEEPS) else ("alone",)
                for kind in kinds:
                    found.append(sweep(kind, number, runs, Path(place) / f"{kind}-{number}-{runs}"))
                    print(json.dumps(found[-1]), flush=True)
    finally:
        machines.shutdown()
    assert not ray.is_initialized()
    return found


if __name__ == "__main__":
    measure()
