"""Data sets on disk: found, fetched, checked and decoded.  NumPy only, no torch."""

from collections.abc import Callable
from dataclasses import dataclass

from sonde.store.datasets import cifar10
from sonde.store.datasets.archive import Archive
from sonde.store.files import Place


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set that is fetched once: its archive, the function that finds it, and the places it looks at."""

    archive: Archive
    find: Callable[[Place], cifar10.ImageSource]
    looked_for: Callable[[Place], list[Place]]


DATASETS = {
    "cifar10": Dataset(archive=cifar10.ARCHIVE, find=cifar10.find_cifar10, looked_for=cifar10.looked_for),
}
