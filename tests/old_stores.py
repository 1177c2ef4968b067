"""Small stores that version 0.1.0 wrote, one for each study, and the commands that made them."""

import zipfile
from pathlib import Path

STORES = Path(__file__).parent / "stores-0.1.0"
SMALL = ("--set", "model.d=16", "--set", "epochs=2", "--seeds", "42")
COMMANDS = {
    "residual": (*SMALL, "--set", "model.L=3", "--set", "task.d=16", "--set", "task.steps_per_epoch=4"),
    "snapshots": (*SMALL, "--set", "model.L=2", "--set", "probes.size=16"),
    "audit": (*SMALL, "--set", "model.L=2", "--set", "probes.size=16"),
    "cifar10": (*SMALL, "--set", "model.L=3", "--set", "probes.size=16"),
}


def unpack(study: str, at: Path) -> Path:
    """The store of a study in a folder of its own."""
    with zipfile.ZipFile(STORES / f"{study}.zip") as archive:
        archive.extractall(at)
    return at
