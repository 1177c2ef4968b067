"""The paper layout: JSON files that existing scripts read and write, for three of the studies.

`READERS` turn a folder of files into evidence, so that figures are drawn without a run; None if the folder holds no
such file.  `WRITERS` turn evidence into files.
"""

from collections.abc import Callable
from pathlib import Path

from sonde.analysis.evidence import Evidence
from sonde.show.paper.json_file import JsonFiles
from sonde.show.paper.log_files import cifar10_files, read_cifar10, read_snapshots, snapshot_files
from sonde.show.paper.residual_files import read_residual, residual_files

READERS: dict[str, Callable[[Path], Evidence | None]] = {
    "residual": read_residual,
    "snapshots": read_snapshots,
    "cifar10": read_cifar10,
}
WRITERS: dict[str, Callable[[Evidence], JsonFiles]] = {
    "residual": residual_files,
    "snapshots": snapshot_files,
    "cifar10": cifar10_files,
}
