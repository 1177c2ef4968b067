"""The paper layout: the JSON files that existing scripts read and write, one module per study with a place in it."""

from collections.abc import Callable
from pathlib import Path

from sonde.analysis.evidence import Evidence
from sonde.show.paper.cifar10_files import cifar10_sheets, read_cifar10
from sonde.show.paper.json_file import Sheets
from sonde.show.paper.residual_files import read_residual, residual_sheets
from sonde.show.paper.snapshot_files import read_snapshots, snapshots_sheets

# Files as evidence, so that figures are drawn without a run; None where the folder holds none of them.
READERS: dict[str, Callable[[Path], Evidence | None]] = {
    "residual": read_residual,
    "snapshots": read_snapshots,
    "cifar10": read_cifar10,
}
WRITERS: dict[str, Callable[[Evidence], Sheets]] = {
    "residual": residual_sheets,
    "snapshots": snapshots_sheets,
    "cifar10": cifar10_sheets,
}
