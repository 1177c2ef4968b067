"""Values of a run in the order a file wants them; what a file cannot hold stops the export."""

from typing import Any

import polars as pl

from sonde.errors import SondeError
from sonde.runs.evidence import Evidence


class RunValues:
    """One run's rows."""

    def __init__(self, evidence: Evidence, run: dict[str, Any]) -> None:
        self.run = run
        self.rows = evidence.rows.filter(run=run["run"])

    def has(self, metric: str) -> bool:
        return not self.rows.filter(metric=metric).is_empty()

    def by(self, order: str, metric: str, **where: int) -> list[float]:
        """A metric's values in order of step, epoch or layer; an undefined one is an error."""
        rows = self._sorted(order, metric, **where)
        undefined = rows.filter(~pl.col("defined"))
        if not undefined.is_empty():
            first = undefined.row(0, named=True)
            raise SondeError(
                f"run {self.run['run']}, epoch {first['epoch']}, metric {metric}: undefined ({first['reason']}), "
                f"which the paper layout cannot hold there; nothing was exported"
            )
        return rows["value"].to_list()

    def nullable(self, order: str, metric: str, **where: int) -> list[float | None]:
        """The same, with None for what is undefined."""
        return [
            value if defined else None
            for value, defined in self._sorted(order, metric, **where).select("value", "defined").iter_rows()
        ]

    def _sorted(self, order: str, metric: str, **where: int) -> pl.DataFrame:
        rows = self.rows.filter(metric=metric, **where).sort(order)
        if rows.is_empty():
            at = f" at epoch {where['epoch']}" if "epoch" in where else ""
            raise SondeError(f"run {self.run['run']} has no {metric}{at}: nothing was exported")
        return rows
