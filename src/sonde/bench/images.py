"""CIFAR-10 for the benchmarks that need its images."""

from sonde.datasets.cifar10 import Absent, find
from sonde.datasets.places import data_folder
from sonde.store.place import Place

SKIPPED = "no images; --data-root or SONDE_DATA"


def there(data_root: Place | None) -> bool:
    try:
        find(data_folder(data_root))
    except Absent:
        return False
    return True
