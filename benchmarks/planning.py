"""What a driver needs before the first task of a large sweep is given away: seconds, and memory."""

import json
import sys
import tempfile
import time
from pathlib import Path

from sonde.config import to_tree
from sonde.engine.bundles import Ledger, bundle
from sonde.studies import STUDIES
from sonde.training.train import stackable

SLOTS = 320  # what the cluster would train at a time


def megabytes() -> float:
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def measure(runs: int) -> dict[str, float]:
    """The audit study under so many seeds that there are `runs`."""
    before, begin = megabytes(), time.perf_counter()
    study = STUDIES["audit"]
    configs = study.configs("quick", range(-(-runs // len(study.configs("quick", [0])))))[:runs]
    with tempfile.TemporaryDirectory() as root:
        ledger = Ledger(configs, runs=Path(root), on_event=lambda _: None, on_notice=lambda _: None)
        ledger.waiting.extend(bundle(ledger.clean_up_ended(), jobs=SLOTS, pays=stackable))
        sent = [json.dumps([to_tree(config) for config in part]) for part in ledger.waiting]
    return {
        "runs": runs,
        "slots": SLOTS,
        "tasks": len(sent),
        "seconds": round(time.perf_counter() - begin, 1),
        "megabytes": round(megabytes() - before),
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
