"""Stored runs as files of the paper layout."""

from collections.abc import Callable

from sonde.figures.evidence import Evidence
from sonde.paper.sheet import Sheets
from sonde.paper.writing.cifar10 import cifar10_sheets
from sonde.paper.writing.residual import residual_sheets
from sonde.paper.writing.snapshots import snapshots_sheets

WRITERS: dict[str, Callable[[Evidence], Sheets]] = {
    "residual": residual_sheets,
    "snapshots": snapshots_sheets,
    "cifar10": cifar10_sheets,
}
