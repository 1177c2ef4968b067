"""Stored runs as files of the paper layout."""

from collections.abc import Callable
from typing import Any

from sonde.figures.evidence import Evidence
from sonde.paper.writing.cifar10 import cifar10_documents
from sonde.paper.writing.residual import residual_documents
from sonde.paper.writing.snapshots import snapshots_documents

Documents = dict[str, Any]  # path below the export root → content

WRITERS: dict[str, Callable[[Evidence], Documents]] = {
    "residual": residual_documents,
    "snapshots": snapshots_documents,
    "cifar10": cifar10_documents,
}
