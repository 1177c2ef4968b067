"""Files of the paper layout as evidence: figures can be drawn from them without a Sonde run."""

from collections.abc import Callable
from pathlib import Path

from sonde.paper.reading.cifar10 import read_cifar10
from sonde.paper.reading.residual import read_residual
from sonde.paper.reading.snapshots import read_snapshots
from sonde.runs.evidence import Evidence

# Each gives None when the folder holds none of its files.
READERS: dict[str, Callable[[Path], Evidence | None]] = {
    "residual": read_residual,
    "snapshots": read_snapshots,
    "cifar10": read_cifar10,
}
