"""What a run writes: bytes and requests, counted in an object store that lives in memory."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import fsspec

from sonde.config import RunConfig, to_tree
from sonde.core.errors import SondeError
from sonde.engine.bundles import train_bundle
from sonde.store import lock
from sonde.store.datasets import Absent
from sonde.store.files import place
from sonde.store.remote import Remote
from sonde.studies import STUDIES
from sonde.tasks import Cifar10

KINDS = (
    ("residual", "quick", "bp"),
    ("audit", "quick", "bp"),
    ("audit", "quick", "credit_bridge"),
    ("audit", "full", "bp"),
    ("audit", "full", "credit_bridge"),
)
FEW = Cifar10(subset=512, test_subset=1024)  # the shapes of the full study, without its hours
VERBS = {
    "put": "PUT",
    "create": "PUT",
    "read_bytes": "GET",
    "exists": "HEAD",
    "iterdir": "LIST",
    "walk": "LIST",
    "unlink": "DELETE",
}


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Requests by their verb, and the bytes that were put; without renewals of the lease, which come with time."""
    count = Counter[str]()
    renewed, lock.RENEWED = lock.RENEWED, threading.TIMEOUT_MAX
    plain = {name: getattr(Remote, name) for name in VERBS}

    def counting(name: str) -> Any:
        def ask(self: Remote, *order: Any, **more: Any) -> Any:
            count[VERBS[name]] += 1
            if VERBS[name] == "PUT":
                count["bytes"] += len(order[0])
            return plain[name](self, *order, **more)

        return ask

    for name in VERBS:
        setattr(Remote, name, counting(name))
    try:
        yield count
    finally:
        lock.RENEWED = renewed
        for name, method in plain.items():
            setattr(Remote, name, method)


def train(config: RunConfig) -> dict[str, float]:
    """Train into a new store; what was asked of it, and what is left in it."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    failures = []
    with counted() as count:
        train_bundle(
            (config,),
            runs=place("memory://runs"),
            data_root=None,
            device="cpu",
            send=lambda message: failures.append(message) if getattr(message, "detail", None) else None,
            should_stop=lambda: False,
        )
    if failures:
        raise SondeError(str(failures[0]))
    left = {name: len(file.getvalue()) for name, file in memory.store.items() if config.id in name}
    memory.store.clear()
    requests = sum(number for verb, number in count.items() if verb != "bytes")
    return {"left": sum(left.values()), "objects": len(left), "written": count["bytes"], "requests": requests}


def line(study: str, scale: str, rule: str) -> dict[str, Any]:
    """What a run of this kind costs apart from its epochs, and each of them."""
    configs = STUDIES[study].configs(scale, [42])
    whole = next(config for config in reversed(configs) if to_tree(config)["rule"]["name"] == rule)
    few = replace(whole, task=FEW) if scale == "full" else whole
    short, long = (2, 4) if scale == "full" else (2, whole.epochs)
    one, other = train(replace(few, epochs=short)), train(replace(few, epochs=long))
    each = {key: (other[key] - one[key]) / (long - short) for key in ("left", "written", "requests")}
    return {
        "study": study,
        "scale": scale,
        "rule": rule,
        "epochs": whole.epochs,
        "objects": other["objects"],
        "fixed": {key: one[key] - each[key] * short for key in each},
        "epoch": each,
    }


def measure() -> list[dict[str, Any]]:
    found = []
    for kind in KINDS:
        try:
            found.append(line(*kind))
        except Absent:
            print(f"{' '.join(kind)}: left out, set SONDE_DATA to where CIFAR-10 is")
    return found


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
