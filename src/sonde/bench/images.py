"""CIFAR-10 for the benchmarks that need its images."""

from pathlib import Path

from sonde.datasets.cifar10 import Absent, find
from sonde.datasets.places import data_folder

SKIPPED = "no images; --data-root or SONDE_DATA"


def there(data_root: Path | None) -> bool:
    try:
        find(data_folder(data_root))
    except Absent:
        return False
    return True
