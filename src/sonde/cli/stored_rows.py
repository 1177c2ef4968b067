"""Evidence of more runs than memory holds: the rows of a run are read when they are asked for."""

from dataclasses import dataclass

import polars as pl

from sonde.analysis.evidence import Evidence
from sonde.store.files import Place
from sonde.store.folder import RunFolder


@dataclass(frozen=True)
class RowsInFolders(Evidence):
    """Evidence without rows of its own."""

    root: Place

    def rows_of(self, run: str) -> pl.DataFrame:
        return RunFolder(self.root / run).read()[1]
