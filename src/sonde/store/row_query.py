"""Which rows a reader asks for."""

from collections.abc import Collection
from dataclasses import dataclass

import polars as pl

from sonde.metrics import family_of, stored_name

Heavy = tuple[str, ...]
"""Families that the index leaves out of a run."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which rows a reader asks for.  `where` sees the rows of one run and metric, maybe among others: windows are over
    both."""

    metrics: Collection[str] | None = None  # None: all
    layers: bool = True  # whether measurements of single layers are wanted, beside those of the whole network
    where: pl.Expr | None = None

    def __post_init__(self) -> None:
        """Metrics may be asked for by their aliases."""
        if self.metrics is not None:
            object.__setattr__(self, "metrics", frozenset(map(stored_name, self.metrics)))

    @property
    def nothing(self) -> bool:
        return self.metrics is not None and not self.metrics

    def of(self, rows: pl.DataFrame) -> pl.DataFrame:
        asked = [] if self.metrics is None else [pl.col("metric").is_in(list(self.metrics))]
        if not self.layers:
            asked.append(pl.col("layer").is_null())
        rows = rows.filter(*asked) if asked else rows
        return rows if self.where is None else rows.filter(self.where)

    def has(self, family: str) -> bool:
        """Whether some of the rows may be of the family."""
        return self.metrics is None or any(family_of(metric) == family for metric in self.metrics)

    def avoids(self, heavy: Heavy) -> bool:
        """Whether none of the rows is of these families."""
        return self.nothing or not any(map(self.has, heavy))
